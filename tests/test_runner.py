"""Running a pipeline from Python: from a script, a thread, trio and asyncio, and how its outcome says what happened."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from conduit_connectors import file, memory
from warm_python import WarmPython

import conduit_py
from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    Record,
    RecordRefused,
    RunningPipeline,
    Source,
    Status,
    processor,
)
from conduit_py.errors import DeadLettersFound, NackNotAllowed, NodeFailed, RunError


@processor
def refuse_odd(record: Record) -> Record:
    if record.payload["n"] % 2:
        raise RecordRefused("odd")
    return record


def numbers(count: int, into: list[Any], **more: Any) -> Pipeline:
    more.setdefault("dead_letters", DeadLetters("drop"))
    return Pipeline(
        "numbers",
        sources=[Source("in", memory.Source(records=[{"n": n} for n in range(count)]))],
        destinations=[Destination("out", memory.Destination(into=into))],
        **more,
    )


def endless(into: list[Any]) -> Pipeline:
    """Three records and then none, until it is stopped."""
    return Pipeline(
        "endless",
        sources=[Source("in", memory.Source(records=[{"n": n} for n in range(3)], bounded=False))],
        destinations=[Destination("out", memory.Destination(into=into))],
    )


async def until(check: Callable[[], bool], sleep: Callable[[float], Awaitable[object]]) -> None:
    while not check():
        await sleep(0.005)


class TestFromAScript:
    def test_a_pipeline_that_completes(self) -> None:
        into: list[Any] = []
        outcome = conduit_py.run(numbers(5, into))

        assert (outcome.pipeline, outcome.status, outcome.ok, outcome.error) == (
            "numbers",
            Status.COMPLETED,
            True,
            None,
        )
        assert [record.payload["n"] for record in into] == [0, 1, 2, 3, 4]
        assert (outcome.counts.read, outcome.counts.acked, outcome.counts.dead_letters) == (5, 5, 0)
        assert outcome.counts.nodes["out"].records == 5
        assert outcome.counts.nodes["in"].kind == "source"
        outcome.raise_for_error()

    def test_a_pipeline_that_fails_has_its_error_in_the_outcome(self) -> None:
        outcome = conduit_py.run(numbers(5, [], processors=[refuse_odd], dead_letters=DeadLetters("stop")))

        assert (outcome.status, outcome.ok) == (Status.DEGRADED, False)
        assert isinstance(outcome.error, RunError)
        assert outcome.error.node == "refuse_odd"
        with pytest.raises(RunError, match="odd"):
            outcome.raise_for_error()

    def test_what_a_connector_raised_is_the_cause_of_the_error(self, tmp_path: Path) -> None:
        class Broken(memory.Destination):
            async def write(self, batch: Any) -> None:
                raise OSError("no disk")

        pipeline = numbers(1, [])
        pipeline.destinations[0].connector = Broken(into=[])
        outcome = conduit_py.run(pipeline)

        assert isinstance(outcome.error, NodeFailed)
        assert isinstance(outcome.error.__cause__, OSError)

    def test_a_definition_with_problems_is_raised(self) -> None:
        pipeline = Pipeline("p", sources=[Source("in", file.Source(pth="x"))], destinations=[])  # type: ignore[call-arg,unused-ignore]

        with pytest.raises(PipelineInvalid) as raised:
            conduit_py.run(pipeline)
        assert {problem.path for problem in raised.value.problems} >= {"sources.in.pth"}

    def test_dead_letters_that_are_kept_are_in_the_outcome(self) -> None:
        outcome = conduit_py.run(numbers(5, [], processors=[refuse_odd], dead_letters=DeadLetters("journal")))

        assert outcome.ok
        assert outcome.counts.dead_letters == 2
        assert [(letter.source, letter.node, letter.record.payload["n"]) for letter in outcome.dead_letters] == [
            ("in", "refuse_odd", 3),
            ("in", "refuse_odd", 1),
        ]
        assert all("odd" in letter.error for letter in outcome.dead_letters)

    def test_with_a_state_the_next_run_continues(self, tmp_path: Path) -> None:
        into: list[Any] = []
        first = conduit_py.run(numbers(3, into), state=tmp_path / "state")
        second = conduit_py.run(numbers(5, into), state=str(tmp_path / "state"))

        assert (first.counts.read, second.counts.read) == (3, 2)
        assert [record.payload["n"] for record in into] == [0, 1, 2, 3, 4]

    def test_without_a_state_nothing_is_remembered(self) -> None:
        into: list[Any] = []
        conduit_py.run(numbers(2, into))
        conduit_py.run(numbers(2, into))

        assert [record.payload["n"] for record in into] == [0, 1, 0, 1]

    def test_exactly_once(self, tmp_path: Path) -> None:
        def pipeline(count: int) -> Pipeline:
            return Pipeline(
                "once",
                sources=[Source("in", memory.Source(records=[{"n": n} for n in range(count)]))],
                destinations=[Destination("out", file.Destination(path=tmp_path / "out.jsonl", format="json"))],
                delivery="exactly_once",
            )

        assert conduit_py.run(pipeline(3), state=tmp_path / "state").ok
        assert conduit_py.run(pipeline(4), state=tmp_path / "state").ok
        written = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").open()]
        assert written == [0, 1, 2, 3]

    def test_from_a_thread_that_is_not_the_main_one(self) -> None:
        outcomes: list[conduit_py.RunOutcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(conduit_py.run(numbers(2, []))))
        thread.start()
        thread.join()

        assert [outcome.status for outcome in outcomes] == [Status.COMPLETED]

    def test_in_a_running_event_loop_it_says_what_to_use(self) -> None:
        async def call() -> None:
            conduit_py.run(numbers(1, []))

        with pytest.raises(RuntimeError, match=r"await conduit_py\.run_async"):
            asyncio.run(call())
        with pytest.raises(RuntimeError, match=r"await conduit_py\.run_async"):
            trio.run(call)


INTERRUPTED = """
import sys
from conduit_connectors import file
import conduit_py
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "tail",
    sources=[Source("in", file.Source(path="in.jsonl", format="json", tail=True))],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
)
try:
    conduit_py.run(pipeline, state="state")
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
print("not reached")
"""


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGINT, 7, "interrupted\n"), (signal.SIGTERM, -15, "")])
def test_a_signal_stops_the_pipeline_and_then_has_its_usual_effect(
    number: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "script.py").write_text(INTERRUPTED)
    child = WarmPython([sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    out = tmp_path / "out.jsonl"
    deadline = time.monotonic() + 100
    while not (out.exists() and out.read_text()):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    printed, _ = child.communicate(timeout=100)

    assert (child.returncode, printed) == (code, said)


STUCK = """
import sys
import trio
import conduit_py
from conduit_connectors import memory
from conduit_py import Destination, Pipeline, Record, Source, sdk

class Endless(sdk.SourceConnector[sdk.Options]):
    sent = False

    async def open(self, position):
        pass

    async def read(self, n):
        if not self.sent:
            self.sent = True
            return [Record.of({"n": 1}, position=b"1")]
        try:
            await trio.sleep_forever()
        finally:
            print("stopping", flush=True)

async def stuck(record):
    print("stuck", flush=True)
    await trio.sleep_forever()

pipeline = Pipeline(
    "stuck",
    sources={"in": Endless()},
    processors=[stuck],
    destinations={"out": memory.Destination(into=[])},
    stop_seconds=1000,
)
try:
    conduit_py.run(pipeline)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
print("not reached")
"""


def test_a_second_signal_does_not_wait_for_a_graceful_stop(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STUCK)
    child = WarmPython([sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "stuck\n"
        child.send_signal(signal.SIGINT)
        # The first signal is being obeyed: two that arrive together would count as one.
        assert child.stdout.readline() == "stopping\n"
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=100)
    finally:
        child.kill()

    assert (child.returncode, printed) == (7, "interrupted\n")


class TestFromTrio:
    async def test_run_async(self) -> None:
        into: list[Any] = []
        outcome = await conduit_py.run_async(numbers(3, into))

        assert (outcome.status, len(into)) == (Status.COMPLETED, 3)

    async def test_cancelling_it_stops_the_pipeline_gracefully(self, tmp_path: Path) -> None:
        into: list[Any] = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_cancel, scope, into)
                await conduit_py.run_async(endless(into), state=tmp_path)

        assert scope.cancelled_caught
        # What was delivered is settled: nothing of it is read again.
        assert (await read_after_resume(tmp_path)) == []

    async def test_the_end_of_the_block_stops_it(self) -> None:
        into: list[Any] = []
        async with conduit_py.running(endless(into)) as running:
            assert (await running.counts()).read == 0  # before it has begun
            await until(lambda: len(into) == 3, trio.sleep)
            counts = await running.counts()
            assert (running.status, running.outcome) == (Status.RUNNING, None)

        assert counts.read == 3
        assert running.outcome is not None
        assert (running.outcome.status, running.outcome.error) == (Status.STOPPED, None)
        assert running.status is Status.STOPPED

    async def test_it_can_be_stopped_and_waited_for(self) -> None:
        into: list[Any] = []
        async with conduit_py.running(endless(into)) as running:
            await until(lambda: len(into) == 3, trio.sleep)
            running.stop()
            outcome = await running.wait()

        assert outcome is running.outcome
        assert outcome.status is Status.STOPPED

    async def test_a_stop_before_it_has_begun_counts(self) -> None:
        async with conduit_py.running(endless([])) as running:
            running.stop(force=True)
            outcome = await running.wait()

        assert outcome.status is Status.STOPPED

    async def test_a_pipeline_that_fails_does_not_end_the_block(self) -> None:
        pipeline = numbers(2, [], processors=[refuse_odd], dead_letters=DeadLetters("stop"))
        async with conduit_py.running(pipeline) as running:
            outcome = await running.wait()
            await trio.lowlevel.checkpoint()

        assert outcome.status is Status.DEGRADED

    async def test_an_error_of_the_block_comes_out_as_it_is(self) -> None:
        with pytest.raises(LookupError, match="mine"):
            async with conduit_py.running(endless([])):
                raise LookupError("mine")

    async def test_a_definition_with_problems_is_raised(self) -> None:
        with pytest.raises(PipelineInvalid):
            await conduit_py.run_async(Pipeline("p", sources=[], destinations=[]))


async def until_cancel(scope: trio.CancelScope, into: list[Any]) -> None:
    await until(lambda: len(into) == 3, trio.sleep)
    scope.cancel()


async def read_after_resume(state: Path) -> list[Any]:
    """What a run of `endless` reads that continues from the state."""
    into: list[Any] = []
    pipeline = endless(into)
    pipeline.sources[0].connector = memory.Source(records=[{"n": n} for n in range(3)])
    await conduit_py.run_async(pipeline, state=state)
    return into


class TestFromAsyncio:
    def test_run_async(self) -> None:
        into: list[Any] = []
        outcome = asyncio.run(conduit_py.run_async(numbers(3, into)))

        assert (outcome.status, len(into)) == (Status.COMPLETED, 3)

    def test_cancelling_it_stops_the_pipeline_gracefully(self, tmp_path: Path) -> None:
        async def main() -> None:
            into: list[Any] = []
            task = asyncio.ensure_future(conduit_py.run_async(endless(into), state=tmp_path))
            await until(lambda: len(into) == 3, asyncio.sleep)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert trio.run(read_after_resume, tmp_path) == []

    def test_the_end_of_the_block_stops_it(self) -> None:
        async def main() -> tuple[RunningPipeline, conduit_py.RunCounts]:
            into: list[Any] = []
            async with conduit_py.running(endless(into)) as running:
                assert (await running.counts()).read <= 3
                await until(lambda: len(into) == 3, asyncio.sleep)
                return running, await running.counts()

        running, counts = asyncio.run(main())
        assert counts.read == 3
        assert running.outcome is not None
        assert (running.outcome.status, running.outcome.error) == (Status.STOPPED, None)

    def test_one_that_is_cancelled_again_does_not_wait_for_a_slow_stop(self) -> None:
        begun = threading.Event()

        @processor
        async def stuck(record: Record) -> Record:
            begun.set()
            await trio.sleep_forever()
            return record

        async def main() -> None:
            task = asyncio.ensure_future(conduit_py.run_async(numbers(1, [], processors=[stuck], stop_seconds=1000)))
            await until(begun.is_set, asyncio.sleep)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())

    def test_an_error_of_the_block_comes_out_as_it_is(self) -> None:
        async def main() -> None:
            async with conduit_py.running(endless([])):
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            asyncio.run(main())

    def test_a_definition_with_problems_is_raised(self) -> None:
        with pytest.raises(PipelineInvalid):
            asyncio.run(conduit_py.run_async(Pipeline("p", sources=[], destinations=[])))


def test_dead_letters_are_logged_and_can_be_raised(caplog: pytest.LogCaptureFixture) -> None:
    outcome = conduit_py.run(numbers(10, [], processors=[refuse_odd], dead_letters=DeadLetters.keep()))

    assert outcome.ok
    line = refuse_odd.process.__code__.co_firstlineno + 3
    refusal = f"refuse_odd: odd, see {__file__}:{line} in refuse_odd"
    assert outcome.warning == f"5 dead letters of 10 records read: {refusal}; they are kept in the state"
    assert f"numbers: {outcome.warning}" in caplog.messages
    with pytest.raises(DeadLettersFound, match="5 dead letters"):
        outcome.raise_for_dead_letters()


def test_without_dead_letters_there_is_no_warning() -> None:
    outcome = conduit_py.run(numbers(10, []))
    outcome.raise_for_dead_letters()

    assert outcome.warning is None


def test_a_run_from_python_stops_when_nearly_all_is_refused_as_that_of_the_command_does() -> None:
    def refuse(record: Record) -> Record:
        raise RecordRefused("never")

    outcome = conduit_py.run(numbers(1000, [], processors=[refuse], dead_letters=DeadLetters.keep()))

    assert outcome.status is Status.DEGRADED
    assert outcome.counts.dead_letters == 95
    assert isinstance(outcome.error, NackNotAllowed)
