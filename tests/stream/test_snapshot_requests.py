"""Requests for snapshots: taken by a running source, durable before that is said, and never the end of a run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from requested_source import RequestedSource
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_py.errors import PipelineIdle
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, DestinationConnector, Options, SnapshotRefused, SnapshotRequest
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.source_calls import TAKE_SECONDS
from conduit_py.testing import FakeStagedDestination, FakeStorage, ScriptedSource

DELIVERIES = ["at_least_once", "at_most_once", "exactly_once"]
ORDERS = SnapshotRequest("orders", "n > 1")


class Gate(DestinationConnector[Options]):
    """Blocks every write until `opened` is set, and notes what was written."""

    written: list[Any]

    def closed(self) -> "Gate":
        self.opened, self.written = trio.Event(), []
        return self

    def fresh(self) -> "Gate":
        return self

    async def write(self, batch: Batch) -> None:
        await self.opened.wait()
        self.written += [record.payload.after for record in batch]


def pipeline(source: Any, delivery: Any = "at_least_once", to: Any = None) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", source)],
        destinations=[Destination("d", to or FakeStagedDestination(storage=FakeStorage()))],
        delivery=delivery,
        dead_letters=DeadLetters.drop(),
    )


@asynccontextmanager
async def running(definition: Pipeline, store: MemoryStore) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(definition, store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        yield supervisor
        supervisor.force()


async def read_stored(store: MemoryStore) -> Any:
    return json.loads((await store.positions("p")).get("s", b"null"))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("numbers", [0, 3])
async def test_a_request_is_in_the_stored_position_when_it_is_said_to_be_durable(
    delivery: str, numbers: int, autojump_clock: MockClock
) -> None:
    source, store = RequestedSource().counting(numbers), MemoryStore()
    async with running(pipeline(source, delivery), store) as supervisor:
        durable = await supervisor.request_snapshot("s", ORDERS)
        said_at_once = durable.is_set()
        await durable.wait()
        position = await read_stored(store)

    assert (said_at_once, position) == (False, [numbers, [["orders", "n > 1", 0]]])


async def test_a_request_behind_records_that_are_not_delivered_is_not_said_to_be_durable(
    autojump_clock: MockClock,
) -> None:
    source, store, gate = RequestedSource().counting(3), MemoryStore(), Gate().closed()
    async with running(pipeline(source, to=gate), store) as supervisor:
        durable = await supervisor.request_snapshot("s", ORDERS)
        await trio.sleep(100)
        before = durable.is_set(), await read_stored(store)
        gate.opened.set()
        await durable.wait()
        position = await read_stored(store)
        await trio.sleep(100)

    assert before == (False, None)
    # The rows of the snapshot were read meanwhile, but none was delivered.
    assert position[0] == 3
    rows = [{"collection": "orders", "where": "n > 1", "row": row} for row in (0, 1)]
    assert gate.written == [{"n": 1}, {"n": 2}, {"n": 3}, *rows]


async def test_a_durable_request_is_carried_out_by_the_next_run(autojump_clock: MockClock) -> None:
    source, store, gate = RequestedSource().counting(2), MemoryStore(), Gate().closed()
    gate.opened.set()
    async with running(pipeline(source, to=gate), store) as supervisor:
        await (await supervisor.request_snapshot("s", ORDERS)).wait()
        # The end of the block cancels every task at once, as a kill would.
    async with running(pipeline(source, to=gate), store):
        await trio.sleep(100)

    assert source.opened == [None, b'[2, [["orders", "n > 1", 0]]]']
    assert [each["row"] for each in gate.written[2:]] == [0, 1]
    assert await read_stored(store) == [2, []]


async def test_several_requests_at_once_are_taken_one_after_the_other(autojump_clock: MockClock) -> None:
    source, store, taken = RequestedSource().counting(0), MemoryStore(), []
    async with running(pipeline(source), store) as supervisor, trio.open_nursery() as nursery:

        async def request(collection: str) -> None:
            await (await supervisor.request_snapshot("s", SnapshotRequest(collection))).wait()
            taken.append(collection)

        for collection in ("a", "b", "c"):
            nursery.start_soon(request, collection)

    assert sorted(taken) == ["a", "b", "c"]
    assert sorted(each[0] for each in (await read_stored(store))[1]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("collection", "message", "advice"),
    [
        ("wrong", "there is no collection 'wrong'", "collections are orders"),
        ("broken", "s failed to take the request: OSError: the system is gone", None),
        ("stuck", f"s did not take the request within {TAKE_SECONDS:g} s", None),
    ],
)
async def test_a_request_that_fails_does_not_end_the_run(
    collection: str, message: str, advice: str | None, autojump_clock: MockClock
) -> None:
    source, store = RequestedSource().counting(3), MemoryStore()
    async with running(pipeline(source), store) as supervisor:
        with pytest.raises(SnapshotRefused) as refused:
            await supervisor.request_snapshot("s", SnapshotRequest(collection))
        await (await supervisor.request_snapshot("s", ORDERS)).wait()
        state = supervisor.state

    assert refused.value.message == message
    assert advice is None or refused.value.suggestion == advice
    assert state.status is Status.RUNNING
    assert (await read_stored(store))[1] == [["orders", "n > 1", 0]]


async def test_a_source_without_snapshots_refuses(autojump_clock: MockClock) -> None:
    async with running(pipeline(ScriptedSource(records=3, bounded=False)), MemoryStore()) as supervisor:
        with pytest.raises(SnapshotRefused, match="s does not read snapshots on request"):
            await supervisor.request_snapshot("s", ORDERS)
        with pytest.raises(SnapshotRefused, match="does not read snapshots on request"):
            await ScriptedSource(records=3).request_snapshot(ORDERS)


async def test_a_pipeline_that_does_not_run_refuses(autojump_clock: MockClock) -> None:
    source, store = RequestedSource().counting(3), MemoryStore()
    supervisor = Supervisor(pipeline(source), store)
    with pytest.raises(PipelineIdle):
        await supervisor.request_snapshot("s", ORDERS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        supervisor.stop()
    with pytest.raises(PipelineIdle):
        await supervisor.request_snapshot("s", ORDERS)
