"""Sync sources and destinations that never wait: read and written in one task, with the promises of all others."""

import gc
import time
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from conduit_py import Batch, DeadLetters, Destination, Pipeline, Record, Retry, Source, processor, sdk
from conduit_py.defaults import BATCH_BYTES, YOUNG_OBJECTS_MAX
from conduit_py.inspect.tap import Tap
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore

NOTHING, REFUSED, FAILS = "nothing", "refused", "fails"


class QuickOptions(sdk.Options):
    """What it does, and where it notes that."""

    name: str = "in"
    script: Any = ()
    seen: Any


class QuickSource(sdk.SourceConnector[QuickOptions]):
    """Returns as many numbers as the next step of its script says; `read` is sync and never waits."""

    blocking: ClassVar[bool | None] = False

    def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1
        total = sum(step for step in self.options.script if isinstance(step, int))
        self._steps = list(self.options.script) if self._next == 0 else [1] * (total - self._next)

    def read(self, n: int) -> sdk.Records | sdk.Reading:
        if not self._steps:
            raise sdk.EndOfSource
        step = self._steps.pop(0)
        if step == NOTHING:
            raise sdk.NothingYet
        count = min(n, step)
        if count < step:
            self._steps.insert(0, step - count)
        numbers = range(self._next, self._next + count)
        self._next += count
        self.options.seen.append(("read", count))
        return [Record.of({"source": self.options.name, "n": number}, position=b"%d" % number) for number in numbers]

    def ack(self, positions: Any) -> None:
        self.options.seen.extend(("ack", int(position)) for position in positions)


class QuickDestination(sdk.DestinationConnector[QuickOptions]):
    """Notes what is written and flushed. Its script says which writes fail once, and which numbers are refused."""

    blocking = False

    def write(self, batch: Batch) -> dict[int, str]:
        written = [(record.payload["source"], record.payload["n"]) for record in batch]
        if FAILS in self.options.script and written[0][1] % 3 == 1 and ("failed", written[0]) not in self.options.seen:
            self.options.seen.append(("failed", written[0]))
            raise sdk.TransientError("not now")
        refused = {i: "no" for i, (_, n) in enumerate(written) if REFUSED in self.options.script and n % 5 == 2}
        self.options.seen.extend(("write", each) for i, each in enumerate(written) if i not in refused)
        return refused


class FlushedDestination(QuickDestination):
    """A record is handled when it is flushed."""

    acks = sdk.AckMode.FLUSH

    def flush(self) -> None:
        self.options.seen.append(("flush", None))


def written(seen: list[Any], source: str = "in") -> list[int]:
    return [what[1] for event, what in seen if event == "write" and what[0] == source]


def made(sources: list[QuickSource], destination: QuickDestination, **settings: Any) -> Pipeline:
    retry = Retry(attempts=settings.pop("attempts", 1))
    return Pipeline(
        "p",
        sources=[Source(each.options.name, each, batch_size=4, window=settings.get("window", 16)) for each in sources],
        processors=settings.get("processors", []),
        destinations=[Destination("out", destination, retry=retry)],
        dead_letters=DeadLetters("drop", window_size=0),
    )


async def run(pipeline: Pipeline, taps: Taps | None = None) -> PipelineState:
    return await Supervisor(pipeline, MemoryStore(), taps=taps).run()


STEPS = st.lists(st.integers(1, 9) | st.just(NOTHING), max_size=12)


@processor
def odd_only(record: Record) -> Record | None:
    return record if record.payload["n"] % 2 else None


@given(
    scripts=st.lists(STEPS, min_size=1, max_size=2),
    kind=st.sampled_from([QuickDestination, FlushedDestination]),
    script=st.sets(st.sampled_from([REFUSED, FAILS])),
    filtered=st.booleans(),
)
def test_everything_arrives_in_order_and_is_acked_once_after_it_is_handled(
    scripts: list[list[Any]], kind: type[QuickDestination], script: set[str], filtered: bool
) -> None:
    seen: list[Any] = []
    sources = [QuickSource(name=f"in-{i}", script=steps, seen=seen) for i, steps in enumerate(scripts)]
    destination = kind(script=script, seen=seen)
    attempts = 3 if FAILS in script else 1
    pipeline = made(sources, destination, attempts=attempts, processors=[odd_only] if filtered else [])

    async def main() -> PipelineState:
        return await run(pipeline)

    state = trio.run(main, clock=MockClock(autojump_threshold=0))

    assert state.status is Status.COMPLETED, state.error
    for i, steps in enumerate(scripts):
        numbers = range(sum(step for step in steps if isinstance(step, int)))
        wanted = [n for n in numbers if (n % 2 or not filtered) and (n % 5 != 2 or REFUSED not in script)]
        assert written(seen, f"in-{i}") == wanted
    acks = [what for event, what in seen if event == "ack"]
    assert len(acks) == sum(step for steps in scripts for step in steps if isinstance(step, int))
    if len(scripts) == 1:
        assert acks == sorted(acks)
        check_acks(seen, flushed=kind is FlushedDestination)


def check_acks(seen: list[Any], *, flushed: bool) -> None:
    """Each written record is acked after its write, and after a flush behind that if there are flushes."""
    for number in written(seen):
        at = seen.index(("write", ("in-0", number)))
        handled = seen.index(("flush", None), at) if flushed else at
        assert seen.index(("ack", number)) > handled


async def test_they_are_called_in_one_task_without_a_channel_between_them() -> None:
    tasks: set[trio.lowlevel.Task] = set()

    class TaskSource(QuickSource):
        def read(self, n: int) -> sdk.Records | sdk.Reading:
            tasks.add(trio.lowlevel.current_task())
            return super().read(n)

    class TaskDestination(FlushedDestination):
        def write(self, batch: Batch) -> dict[int, str]:
            tasks.add(trio.lowlevel.current_task())
            return super().write(batch)

    seen: list[Any] = []
    await run(made([TaskSource(script=[1, NOTHING, 1], seen=seen)], TaskDestination(seen=seen)))

    assert written(seen) == [0, 1]
    assert len(tasks) == 1


async def test_a_record_that_is_alone_is_flushed_and_acked_at_once(autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    source = QuickSource(script=[1, NOTHING, NOTHING, 1], seen=seen)
    await run(made([source], FlushedDestination(seen=seen)))

    assert [event for event, _ in seen[:4]] == ["read", "write", "flush", "ack"]


async def test_single_records_fill_a_batch_while_the_pipeline_is_busy(autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    batches: list[int] = []

    @processor(batch=True)
    def count(batch: Batch) -> list[Record]:
        batches.append(len(batch))
        return list(batch)

    source = QuickSource(script=[1] * 20, seen=seen)
    await run(made([source], QuickDestination(seen=seen), processors=[count]))

    assert batches == [2] * 10, "half a batch is enough to go on with"
    assert written(seen) == list(range(20))


@pytest.mark.parametrize("kind", [bytes, dict])
async def test_large_records_make_small_batches(kind: type) -> None:
    """Batches of megabytes leave the caches, and their records wait for each other."""
    batches: list[int] = []

    class Large(QuickSource):
        def read(self, n: int) -> sdk.Records:
            records = super().read(n)
            assert isinstance(records, list)
            for record in records:
                record.payload.after = b"x" * 10_000 if kind is bytes else {"text": "x" * 10_000}
            return records

    @processor(batch=True)
    def count(batch: Batch) -> list[None]:
        batches.append(len(batch))
        return [None] * len(batch)

    seen: list[Any] = []
    pipeline = Pipeline(
        "p",
        sources=[Source("in", Large(script=[2000], seen=seen))],
        processors=[count],
        destinations=[Destination("out", QuickDestination(seen=seen))],
    )
    await run(pipeline)

    assert sum(batches) == 2000
    assert max(batches[1:]) <= BATCH_BYTES / 10_000, "the first one is read before the size is known"


async def test_a_tap_that_comes_and_goes_does_not_change_the_order(autojump_clock: MockClock) -> None:
    """A tapped writer takes its batches from the channel; one written past it would overtake them."""
    seen: list[Any] = []
    taps = Taps()
    tap = Tap(rate=1000)

    @processor
    def look(record: Record) -> Record:
        point = taps.point("out").taps
        if record.payload["n"] % 3 == 0:
            point.append(tap) if tap not in point else point.remove(tap)
        return record

    source = QuickSource(script=[1] * 60, seen=seen)
    await run(made([source], FlushedDestination(seen=seen), processors=[look]), taps)

    assert written(seen) == list(range(60))


async def test_an_error_of_a_write_names_the_destination() -> None:
    seen: list[Any] = []
    destination = QuickDestination(script={FAILS}, seen=seen)
    source = QuickSource(script=[1, NOTHING, 1], seen=seen)
    state = await run(made([source], destination))

    assert state.error is not None
    assert state.error.node == "out"


async def test_other_tasks_run_while_a_quick_pipeline_is_busy() -> None:
    """Its tasks never wait, so they must give way by themselves."""
    seen: list[Any] = []
    turns = 0

    @processor
    def slowly(record: Record) -> None:
        time.sleep(0.002)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    source = QuickSource(script=[1] * 50, seen=seen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await run(made([source], QuickDestination(seen=seen), processors=[slowly], window=100))
        nursery.cancel_scope.cancel()

    assert turns > 20


async def test_a_source_that_proves_slow_is_read_in_a_thread_from_then_on() -> None:
    class Slow(QuickSource):
        blocking = None

        def read(self, n: int) -> sdk.Records | sdk.Reading:
            time.sleep(0.06)
            return super().read(n)

    seen: list[Any] = []
    state = await run(made([Slow(script=[1] * 6, seen=seen)], QuickDestination(seen=seen)))

    assert state.status is Status.COMPLETED
    assert written(seen) == list(range(6))


@pytest.mark.parametrize("before", [700, 0, 50_000])
async def test_the_collector_looks_less_often_while_a_pipeline_runs_unless_somebody_chose(before: int) -> None:
    seen: list[Any] = []
    during: list[int] = []

    @processor
    def look(record: Record) -> Record:
        during.append(gc.get_threshold()[0])
        return record

    others = gc.get_threshold()
    gc.set_threshold(before, *others[1:])
    try:
        await run(made([QuickSource(script=[1], seen=seen)], QuickDestination(seen=seen), processors=[look]))
        assert during == [before if before != 700 else YOUNG_OBJECTS_MAX]
        assert gc.get_threshold()[0] == before
    finally:
        gc.set_threshold(*others)
