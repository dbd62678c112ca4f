"""A run from opening to tearing down: what is opened is torn down, whenever and however the run ends."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Source, sdk
from conduit_py.errors import FatalError
from conduit_py.graph.compile import compile_pipeline
from conduit_py.sdk import Batch, EndOfSource
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.commit import CommitEach
from conduit_py.stream.run import FORCED_TEARDOWN_SECONDS, TEARDOWN_SECONDS, Ending, How, Run
from conduit_py.testing import (
    Block,
    Delay,
    EventLog,
    Fail,
    ScriptedDestination,
    ScriptedSource,
    ScriptStep,
    StoppableSource,
    position_of,
    simulated,
)


def made(
    log: EventLog,
    *,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    lake: dict[str, Any] | None = None,
    shelf: dict[str, Any] | None = None,
    kind: type[ScriptedSource] = ScriptedSource,
    stop_seconds: float = 30,
) -> Run:
    """Two sources, a destination and a dead-letter destination, all scripted."""
    pipeline = Pipeline(
        "p",
        sources=[
            Source(id, kind(name=id, log=log, **(script or {})), batch_size=2)
            for id, script in (("first", first), ("second", second))
        ],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, **(lake or {})))],
        dead_letters=DeadLetters(ScriptedDestination(name="shelf", log=log, **(shelf or {}))),
        stop_seconds=stop_seconds,
    )
    return Run(compile_pipeline(pipeline), MemoryStore(), CommitEach())


def opened(log: EventLog) -> list[str]:
    return [event.node for event in log.did("open")]


def torn_down(log: EventLog) -> list[str]:
    return sorted(event.node for event in log.did("teardown"))


class Ended:
    """Runs a run beside a test and keeps how it ended, and when."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def __call__(self) -> None:
        self.ending = await self.run.execute()
        self.at = trio.current_time()


class TestOpening:
    """Destinations first, sources last; a failure tears down what was opened, the failed one included."""

    async def test_no_source_is_opened_before_everything_it_needs(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        ending = await made(log).execute()

        assert ending == Ending(How.COMPLETED)
        assert opened(log) == ["lake", "shelf", "first", "second"]
        assert torn_down(log) == ["first", "lake", "second", "shelf"]
        log.check()

    @pytest.mark.parametrize(
        ("failing", "expected"),
        [
            ("lake", ["lake"]),
            ("shelf", ["lake", "shelf"]),
            ("first", ["first", "lake", "shelf"]),
            ("second", ["first", "lake", "second", "shelf"]),
        ],
    )
    @pytest.mark.parametrize("error", [OSError, FatalError])
    async def test_when_one_open_fails(
        self, failing: str, expected: list[str], error: type[Exception], autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        ending = await made(log, **{failing: {"at_open": Fail("locked", error=error)}}).execute()  # type: ignore[arg-type]

        assert ending.how is How.FAILED
        node = "dead-letters" if failing == "shelf" else failing
        assert ending.error is not None
        assert ending.error.node == node
        assert ending.error.message == ("locked" if error is FatalError else f"{node}: open failed: OSError: locked")
        assert torn_down(log) == expected
        assert log.read == {}
        log.check()

    @simulated(seeds=range(5))
    async def test_a_stop_ends_an_open_that_blocks_at_the_deadline(self, seed: int) -> None:
        log = EventLog()
        run = made(log, first={"at_open": Block()}, stop_seconds=5)
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(3)
            run.stop()

        assert ended.at == 8
        assert ended.ending.how is How.FORCED
        assert ended.ending.error is not None
        assert ended.ending.error.code == "stop.timed_out"
        assert torn_down(log) == ["first", "lake", "shelf"]
        log.check()

    @simulated(seeds=range(5))
    async def test_a_force_ends_an_open_that_blocks_at_once(self, seed: int) -> None:
        log = EventLog()
        run = made(log, shelf={"at_open": Block()})
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(3)
            run.force()
            run.force()

        assert ended.at == 3
        assert ended.ending == Ending(How.FORCED)
        assert torn_down(log) == ["lake", "shelf"]


class TestBeforeTheStart:
    """Both kinds of stop may come before the run."""

    async def test_a_stop_opens_and_reads_nothing_more_than_it_must(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        run = made(log)
        run.stop()
        ending = await run.execute()

        assert ending == Ending(How.STOPPED)
        assert log.read == {}
        assert opened(log) == ["lake", "shelf", "first", "second"]
        assert torn_down(log) == ["first", "lake", "second", "shelf"]

    async def test_a_force_opens_nothing(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        run = made(log)
        run.force()
        ending = await run.execute()

        assert ending == Ending(How.FORCED)
        assert opened(log) == []


class TestStop:
    """A graceful stop tells the sources, once, and waits for what was read."""

    @simulated(seeds=range(10))
    async def test_a_source_with_a_stop_of_its_own_is_called_once(self, seed: int) -> None:
        log = EventLog()
        endless = {"bounded": False, "records": 5}
        run = made(log, first=endless, second=endless, kind=StoppableSource)
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(10)
            for _ in range(3):
                run.stop()
                await trio.lowlevel.checkpoint()

        assert ended.at == 10
        assert ended.ending == Ending(How.STOPPED)
        assert sorted(event.node for event in log.did("stop")) == ["first", "second"]
        assert log.acked["first"] == [position_of(n) for n in range(5)]
        log.check()

    @simulated(seeds=range(10))
    async def test_a_stop_that_takes_its_time_is_waited_for(self, seed: int) -> None:
        """A source may still have to sign off upstream after its read has ended."""
        finished: list[float] = []

        class Courteous(sdk.SourceConnector[sdk.Options]):
            async def open(self, position: bytes | None) -> None:
                self.leaving = trio.Event()

            async def read(self, n: int) -> list[sdk.Record]:
                await self.leaving.wait()
                raise EndOfSource

            async def stop(self) -> None:
                self.leaving.set()
                await trio.sleep(3)
                finished.append(trio.current_time())

        log = EventLog()
        pipeline = Pipeline(
            "p",
            sources=[Source("courteous", Courteous())],
            destinations=[Destination("lake", ScriptedDestination(log=log))],
        )
        run = Run(compile_pipeline(pipeline), MemoryStore(), CommitEach())
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(10)
            run.stop()

        assert finished == [13]
        assert ended.ending == Ending(How.STOPPED)

    @simulated(seeds=range(5))
    async def test_a_stop_that_fails_is_the_error_of_the_run(self, seed: int) -> None:
        log = EventLog()
        run = made(log, first={"bounded": False, "at_stop": Fail("no answer", error=OSError)}, kind=StoppableSource)
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(10)
            run.stop()

        assert ended.ending.how is How.FAILED
        assert ended.ending.error is not None
        assert ended.ending.error.message == "first: stop failed: OSError: no answer"
        assert torn_down(log) == ["first", "lake", "second", "shelf"]

    @simulated(seeds=range(5))
    async def test_a_source_that_ends_by_itself_after_a_stop_is_stopped_not_completed(self, seed: int) -> None:
        log = EventLog()
        run = made(log, first={"records": 2, "script": {0: Delay(20, shielded=True)}}, second={"records": 0})
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(10)
            run.stop()

        assert ended.ending == Ending(How.STOPPED)


class TestTearingDown:
    """Nothing can keep the others from being torn down."""

    async def test_an_error_fails_a_run_that_was_fine(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        ending = await made(log, lake={"at_teardown": Fail("not closed", error=OSError)}).execute()

        assert ending.how is How.FAILED
        assert ending.error is not None
        assert ending.error.message == "lake: teardown failed: OSError: not closed"
        assert torn_down(log) == ["first", "lake", "second", "shelf"]
        assert log.acked["first"] == [position_of(n) for n in range(10)]

    @pytest.mark.parametrize(
        ("step", "how", "seconds"),
        [(None, How.COMPLETED, TEARDOWN_SECONDS), (Fail("down"), How.FAILED, FORCED_TEARDOWN_SECONDS)],
    )
    async def test_one_that_blocks_is_left_behind(
        self, step: ScriptStep | None, how: How, seconds: float, autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        script: dict[int, Any] = {9: step} if step else {}
        run = made(log, lake={"script": script}, second={"at_teardown": Block(), "records": 0})
        ending = await run.execute()

        assert ending.how is how
        assert trio.current_time() == pytest.approx(seconds, abs=0.1)
        assert torn_down(log) == ["first", "lake", "second", "shelf"]

    async def test_a_force_during_the_teardown_shortens_it(self, autojump_clock: MockClock) -> None:
        run = made(EventLog(), second={"at_teardown": Block(), "records": 0})
        ended = Ended(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended)
            await trio.sleep(5)
            run.force()

        assert ended.at <= 5 + FORCED_TEARDOWN_SECONDS
        # Everything read was settled before: nothing is left to be read again.
        assert ended.ending == Ending(How.COMPLETED)

    async def test_a_cancelled_run_is_torn_down_too(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        with trio.move_on_after(5) as scope:
            await made(log, first={"bounded": False}, lake={"at_teardown": Delay(1)}).execute()

        assert scope.cancelled_caught
        # The canceller of a run waits until its connectors have let go of everything.
        assert trio.current_time() == 6
        assert torn_down(log) == ["first", "lake", "second", "shelf"]
        log.check()


async def test_a_failure_while_a_graceful_stop_drains_is_kept(autojump_clock: MockClock) -> None:
    log = EventLog()
    script: dict[int, Any] = {4: (Delay(20), Fail("too late"))}
    run = made(log, first={"bounded": False}, lake={"script": script})
    ended = Ended(run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ended)
        await trio.sleep(10)
        run.stop()

    assert ended.ending.how is How.FAILED
    assert ended.ending.error is not None
    assert (ended.ending.error.message, ended.ending.error.node) == ("too late", "lake")


async def test_a_bug_of_ours_or_theirs_in_a_fate_handler_ends_the_run_and_acks_nothing_from_there(
    autojump_clock: MockClock,
) -> None:
    log = EventLog()

    def explode(message: sdk.MessageId, fate: sdk.Fate) -> None:
        raise ZeroDivisionError("in a handler")

    @sdk.processor(batch=True)
    def watch(batch: Batch) -> list[sdk.Record]:
        for index, message in enumerate(batch.ids):
            if message.sequence == 5:
                batch.on_fate(index, explode)
        return batch.records

    pipeline = Pipeline(
        "p",
        sources=[Source("first", ScriptedSource(name="first", log=log), batch_size=2)],
        processors=[watch],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
    )
    ending = await Run(compile_pipeline(pipeline), MemoryStore(), CommitEach()).execute()

    assert ending.how is How.FAILED
    assert ending.error is not None
    assert ending.error.node == "lake"
    assert ending.error.message == "lake: running failed: ZeroDivisionError: in a handler"
    assert log.acked["first"] == [position_of(n) for n in range(len(log.acked["first"]))]
    assert len(log.acked["first"]) <= 4
