"""Limits of a node: how much a source reads in a second, how much a destination writes in a second and in one call."""

from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

from conduit_py import Batch, DeadLetters, Destination, Pipeline, PipelineInvalid, RateLimit, Retry, Source, sdk
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource


class Counting(sdk.DestinationConnector[sdk.Options]):
    """Notes when it was given how many records, and refuses the record 7."""

    writes: ClassVar[list[tuple[float, int]]] = []

    async def write(self, batch: Batch) -> dict[int, str]:
        self.writes.append((trio.current_time(), len(batch)))
        return {index: "unlucky" for index, record in enumerate(batch) if record.payload.after == {"number": 7}}


@pytest.fixture(autouse=True)
def _forget() -> None:
    Counting.writes.clear()


def records(count: int, size: int = 0) -> list[sdk.Record]:
    return [sdk.Record.of({"number": number} | ({"text": "x" * size} if size else {})) for number in range(count)]


async def run(given: list[sdk.Record], *, source: Any = None, lake: Any = None) -> Supervisor:
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=given, log=EventLog()), **(source or {}))],
        destinations=[Destination("lake", Counting(), **(lake or {}))],
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    state = await supervisor.run()
    assert state.status is Status.COMPLETED
    assert sum(count for _, count in Counting.writes) == len(given)
    return supervisor


async def test_a_source_reads_so_many_records_in_a_second_and_evenly(autojump_clock: MockClock) -> None:
    await run(records(500), source={"rate": RateLimit(records_per_second=50)})

    assert trio.current_time() == pytest.approx(10, abs=1.2)
    seconds = [sum(count for at, count in Counting.writes if int(at) == second) for second in range(1, 9)]
    assert all(40 <= count <= 110 for count in seconds)


async def test_a_source_reads_so_many_bytes_in_a_second(autojump_clock: MockClock) -> None:
    await run(records(100, size=1000), source={"rate": RateLimit(bytes_per_second=10_000)})

    assert 8 < trio.current_time() < 13


async def test_a_destination_writes_so_many_records_in_a_second(autojump_clock: MockClock) -> None:
    supervisor = await run(records(500), lake={"rate": RateLimit(records_per_second=100)})

    assert trio.current_time() == pytest.approx(4, abs=1.2)
    assert max(count for _, count in Counting.writes) <= 100
    # The refused record is found in the part that it was in.
    assert supervisor.progress().dead_letters == 1


async def test_a_destination_writes_batches_of_a_size_and_of_so_many_bytes(autojump_clock: MockClock) -> None:
    await run(records(100), lake={"batch_size": 30})
    sizes = [count for _, count in Counting.writes]
    Counting.writes.clear()
    await run(records(100, size=1000), lake={"batch_bytes": 10_000})

    assert max(sizes) == 30
    assert 5 <= max(count for _, count in Counting.writes) <= 10


class Picky(sdk.DestinationConnector[sdk.Options]):
    """Keeps what it is given. Raises `errors` at the parts that begin with these numbers, each once."""

    written: ClassVar[list[int]] = []
    errors: ClassVar[dict[int, Exception]] = {}

    async def write(self, batch: Batch) -> None:
        numbers = [record.payload["number"] for record in batch]
        if (error := self.errors.pop(numbers[0], None)) is not None:
            raise error
        self.written.extend(numbers)


async def run_picky(errors: dict[int, Exception], **lake: Any) -> Supervisor:
    Picky.written, Picky.errors = [], errors
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records(6), log=EventLog()))],
        destinations=[Destination("lake", Picky(), **lake)],
        dead_letters=DeadLetters("drop", window_size=0),
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    assert (await supervisor.run()).status is Status.COMPLETED
    return supervisor


async def test_a_part_that_is_refused_takes_no_other_with_it(autojump_clock: MockClock) -> None:
    supervisor = await run_picky({2: sdk.RecordRefused("unlucky")}, batch_size=2)

    assert Picky.written == [0, 1, 4, 5]
    assert supervisor.progress().dead_letters == 2


async def test_a_retry_repeats_only_the_part_that_failed(autojump_clock: MockClock) -> None:
    await run_picky({2: sdk.TransientError("away")}, batch_size=2, retry=Retry(attempts=2))

    assert Picky.written == [0, 1, 2, 3, 4, 5]


async def test_what_is_written_is_settled_while_the_rest_waits_for_the_limit(autojump_clock: MockClock) -> None:
    Picky.written, Picky.errors = [], {}
    slow = Destination("lake", Picky(), rate=RateLimit(records_per_second=0.01))
    source = Source("source", ScriptedSource(records=records(6), log=EventLog()))
    supervisor = Supervisor(Pipeline("p", sources=[source], destinations=[slow]), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(250)
        acked, written = supervisor.progress().acked, len(Picky.written)
        supervisor.force()

    assert written == 3
    assert acked == 3


async def test_a_stop_does_not_wait_for_the_limit(autojump_clock: MockClock) -> None:
    slow = Source("source", ScriptedSource(records=9, log=EventLog()), rate=RateLimit(records_per_second=0.001))
    pipeline = Pipeline("p", sources=[slow], destinations=[Destination("lake", Counting())])
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        supervisor.stop()

    assert trio.current_time() < 101
    assert (supervisor.state.status, supervisor.progress().acked) == (Status.STOPPED, 1)


def test_wrong_limits_are_problems() -> None:
    with pytest.raises(ValueError, match="records_per_second or bytes_per_second must be given"):
        RateLimit()
    lake = Destination("lake", ScriptedDestination(), batch_size=0, rate=7)  # type: ignore[arg-type]
    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(Pipeline("p", sources=[Source("source", ScriptedSource())], destinations=[lake]))
    assert [each.path.rpartition(".")[2] for each in raised.value.problems] == ["batch_size", "rate"]
