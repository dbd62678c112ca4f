"""What sources of changes say beside records, promised of both engines: progress, and schemas that change."""

from collections.abc import Callable

import trio
from conduit_connectors import postgres as connector
from engine_world import World
from postgres_changes import run_sql, slot_of

from conduit_py import pipeline as p
from conduit_py import sdk
from conduit_py.record import CollectionSchema, Record, SchemaField
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

SECONDS_MAX = 300.0
COUNT = 12


class Growing(sdk.SourceConnector[sdk.Options]):
    """Four records, then progress, then a new schema, and so on. The schema has as many fields as its version says."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self.acked: list[bytes] = []
        self._next = 0 if position is None else int(position.partition(b"+")[0]) + 1
        self._rested = position is not None and b"+" in position

    async def read(self, n: int) -> sdk.Reading:
        await trio.lowlevel.checkpoint()
        if self._next and self._next % 4 == 0 and not self._rested:
            self._rested = True
            return sdk.Reading([], position=b"%d+" % (self._next - 1))
        if self._next == COUNT:
            raise sdk.EndOfSource
        made = Record.of({"n": self._next}, position=b"%d" % self._next)
        made.metadata = {sdk.metadata.COLLECTION: "orders"}
        version = self._next // 4 + 1
        fields = tuple(SchemaField(f"f{index}", "integer") for index in range(version))
        new = self._next % 4 == 0
        self._next, self._rested = self._next + 1, False
        return sdk.Reading([made], schemas=[CollectionSchema("orders", str(version), fields)] if new else [])


class SchemaNoted(sdk.Processor[sdk.Options]):
    """Notes in the payload how many fields the source's schema has."""

    def process_batch(self, batch: sdk.Batch) -> list[sdk.Result]:
        made: list[sdk.Result] = []
        for index in range(len(batch)):
            record, schema = batch.record(index), batch.schema(index)
            record.payload["fields"] = None if schema is None else len(schema.fields)
            made.append(record)
        return made


async def test_schemas_reach_processors_and_progress_is_stored_in_order(world: World) -> None:
    store = MemoryStore()
    pipeline = world.pipeline(p.Processor("note", SchemaNoted()), sources=[p.Source("in", Growing())])

    state = await world.run(pipeline, store)

    assert state.status is Status.COMPLETED, state.error
    assert [(row["n"], row["fields"]) for row in world.rows()] == [(n, n // 4 + 1) for n in range(COUNT)]
    assert (await store.positions("numbers"))["in"] == b"11+"


class WithSchema(sdk.DestinationConnector[sdk.Options]):
    """Notes for each record how many fields its schema has, on the driver."""

    def open(self) -> None:
        NOTED.clear()

    def write(self, batch: sdk.Batch) -> None:
        for index in range(len(batch)):
            schema = batch.schema(index)
            NOTED.append((batch.record(index).payload["n"], None if schema is None else len(schema.fields)))


NOTED: list[tuple[int, int | None]] = []


async def test_schemas_reach_a_destination(world: World) -> None:
    to = p.Destination("to", WithSchema())
    state = await world.run(world.pipeline(sources=[p.Source("in", Growing())], destinations=[to]))

    assert state.status is Status.COMPLETED, state.error
    assert [(n, n // 4 + 1) for n in range(COUNT)] == NOTED


async def test_changes_of_postgresql_and_a_slot_that_moves_on_idle_tables(world: World, postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE orders (n bigint PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    slot = slot_of(postgres)
    source = connector.Source(url=postgres, slot=slot, tables=["orders"], heartbeat_seconds=0.2)
    supervisor = world.supervisor(world.pipeline(sources=[p.Source("in", source)]))

    async def wait_for(condition: Callable[[], bool]) -> None:
        while not condition():
            assert supervisor.state.status is not Status.DEGRADED, supervisor.state.error
            await trio.sleep(0.05)

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await wait_for(lambda: len(world.rows()) == 2)
            [[idle]] = run_sql(postgres, "SELECT pg_logical_emit_message(true, 'other', 'x')")
            moved = f"SELECT confirmed_flush_lsn >= '{idle}' FROM pg_replication_slots WHERE slot_name = '{slot}'"
            await wait_for(lambda: run_sql(postgres, moved) == [(True,)])
            run_sql(postgres, "ALTER TABLE orders ADD note text", "INSERT INTO orders VALUES (3, 'x')")
            await wait_for(lambda: len(world.rows()) == 3)
            supervisor.stop()

    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert world.rows() == [{"n": 1}, {"n": 2}, {"n": 3, "note": "x"}]
