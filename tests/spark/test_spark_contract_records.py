"""What becomes of records, promised of both engines: order, filters, splits, branches, identities and counts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conduit_connectors import memory
from engine_world import EVERY_WAY, STAGED, TABLES, World, kept, no_good, sorted_out

from conduit_py import pipeline as p
from conduit_py.batch import Batch
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Progress


@EVERY_WAY
async def test_records_are_filtered_split_and_refused_in_order(world: World) -> None:
    world.write(range(1000))
    supervisor = world.supervisor(world.pipeline(sorted_out))

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == kept(range(1000))
    assert all(row["double"] == 2 * row["n"] for row in world.rows())
    letters = world.rows("dead")
    assert [letter["record"]["payload"]["after"] for letter in letters] == [{"n": n} for n in no_good(range(1000))]
    assert (letters[0]["node"], letters[0]["error"]) == ("sorted_out", "ValueError: 6 is no good")
    progress = supervisor.progress()
    assert (progress.read, progress.acked, progress.dead_letters) == (1000, 1000, len(no_good(range(1000))))
    assert progress.filtered == sum(n % 3 == 2 and n % 7 != 6 for n in range(1000))


@EVERY_WAY
async def test_several_sources_fan_out_to_several_destinations(world: World) -> None:
    """Branches by condition, by source and by processors of their own: none sees what another does to a record."""
    world.write(range(300))

    def mark(record: Record) -> Record:
        record.payload["marked"] = True
        return record

    def early(record: Record) -> Record | None:
        record.payload["early"] = True
        return record if record.payload["n"] != 17 else None

    for id in ("every", "large"):
        world.declare(id, "n BIGINT, early BOOLEAN")
    listed = p.Source("list", memory.Source(records=[{"n": n} for n in range(300, 500)]))
    pipeline = world.pipeline(
        sources=[world.source(processors=[early]), listed],
        destinations=[
            world.destination("every"),
            world.destination("large", when=lambda record: record.payload["n"] >= 250),
            world.destination("marked", processors=[mark], after="list"),
        ],
    )

    state = await world.run(pipeline)

    assert state.status is Status.COMPLETED, state.error
    every = world.rows("every")
    assert [row for row in every if row["n"] < 300] == [{"n": n, "early": True} for n in range(300) if n != 17]
    assert [row for row in every if row["n"] >= 300] == [{"n": n} for n in range(300, 500)]
    assert sorted(world.numbers("large")) == list(range(250, 500))
    assert world.rows("marked") == [{"n": n, "marked": True} for n in range(300, 500)]


async def test_the_condition_of_a_destination_is_asked_before_its_processors(world: World) -> None:
    world.write(range(300))

    def negate(record: Record) -> Record:
        if record.payload["n"] < 250:
            raise ValueError("not wanted here")
        record.payload["n"] *= -1
        return record

    large = world.destination("large", when=lambda record: record.payload["n"] >= 250, processors=[negate])
    supervisor = world.supervisor(world.pipeline(destinations=[world.destination("every"), large]))

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers("every") == list(range(300))
    assert world.numbers("large") == [-n for n in range(250, 300)]
    progress = supervisor.progress()
    assert (progress.read, progress.acked, progress.dead_letters) == (300, 300, 0)


def rich(world: World) -> p.Pipeline:
    """Records that are split twice and of which pieces are filtered and refused, for branches that differ."""

    def in_three(record: Record) -> list[Record]:
        n = record.payload["n"]
        return [Record.of({"n": n, "piece": piece}) for piece in range(3)]

    def choose(record: Record) -> Record | list[Record] | None:
        n, piece = record.payload["n"], record.payload["piece"]
        if n % 4 == 3 and piece != 1:
            return None
        if n % 10 == 1 and piece == 0:
            raise ValueError(f"{n} begins badly")
        return [record, record.copy()] if n % 6 == 5 and piece == 1 else record

    def ends_well(record: Record) -> Record | None:
        if record.payload["piece"] == 2 and record.payload["n"] % 8 == 2:
            raise ValueError("ends badly")
        return record if record.payload["n"] % 9 else None

    class Keyed(world.kind):  # type: ignore[misc, name-defined]
        """Writes the delivery key of each record beside it."""

        def write(self, batch: Batch) -> Any:
            return super().write(_with_keys(batch))

        def prepare(self, batch: Batch) -> Any:
            return super().prepare(_with_keys(batch))

    def _with_keys(batch: Batch) -> Batch:
        records = [record.copy() for record in batch]
        for index, record in enumerate(records):
            record.payload["key"] = batch.delivery_key(index).hex()
        return Batch(batch.span, records, batch.sequences, batch.pieces)

    return world.pipeline(
        in_three,
        choose,
        destinations=[
            world.destination("all", Keyed),
            world.destination("most", Keyed, processors=[ends_well]),
            world.destination("even", Keyed, when=lambda record: record.payload["n"] % 2 == 0),
        ],
    )


def same_input(worlds: Sequence[World], folder: Path, count: int) -> None:
    """One file for all: a position tells which file it is of."""
    (folder / "in.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(count)))
    for world in worlds:
        world.path("in").symlink_to(folder / "in.jsonl")


async def test_output_letters_positions_and_counts_are_the_same_on_both_engines(
    worlds: list[World], tmp_path: Path
) -> None:
    same_input(worlds, tmp_path, 500)
    seen = {}
    for world in worlds:
        store = MemoryStore()
        supervisor = world.supervisor(rich(world), store)
        state = await supervisor.run()
        assert state.status is Status.COMPLETED, state.error
        letters = [{key: letter[key] for key in letter if key != "at"} for letter in world.rows("dead")]
        outputs = {id: world.rows(id) for id in ("all", "most", "even")}
        seen[world.way] = (await store.positions("numbers"), letters, outputs, counts(supervisor.progress()))

    positions, letters, outputs, counted = seen["trio"]
    assert len(letters) > 50
    for way in ("spark", "spark-prepared", STAGED, TABLES):
        assert seen[way][0] == positions
        assert seen[way][1] == letters
        # Of each record the same pieces with the same delivery keys, in the same order.
        assert seen[way][2] == outputs
        assert seen[way][3] == counted


def counts(progress: Progress) -> Any:
    totals = (progress.read, progress.acked, progress.filtered, progress.dead_letters, progress.in_flight)
    nodes = [(each.node, each.kind, each.records, each.filtered, each.refused) for each in progress.nodes]
    return totals, nodes


async def test_a_record_that_several_branches_refuse_is_one_letter(world: World) -> None:
    """One by a processor of its branch, one by its destination: wherever they are, they speak of one message."""
    world.write(range(100))

    def spoil(record: Record) -> Record:
        if record.payload["n"] == 40:
            raise ValueError("not here")
        return record

    def raw(record: Record) -> Record:
        n = record.payload["n"]
        return Record.of(b"%d" % n) if n in (40, 50) else record

    pipeline = world.pipeline(
        destinations=[world.destination("a", processors=[spoil]), world.destination("b", processors=[raw])]
    )
    state = await world.run(pipeline)

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers("a") == [n for n in range(100) if n != 40]
    assert world.numbers("b") == [n for n in range(100) if n not in (40, 50)]
    letters = world.rows("dead")
    assert len(letters) == 2
    assert [sorted(each["node"] for each in letter["failures"]) for letter in letters] == [["a:spoil", "b"], ["b"]]
