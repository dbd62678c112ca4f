"""SystemExit, KeyboardInterrupt and GeneratorExit of user code: errors of its pipeline, whose process goes on."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from warm_python import WarmPython

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Retry, Source, processor, sdk
from conduit_py.batch import Fate
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk import Batch, EndOfSource
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, run_to_end

EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit()]


class Escaped(BaseException):
    """A class of the user's that no `except Exception` catches."""


@pytest.fixture(params=[*EXITS, Escaped(), BaseExceptionGroup("in a nursery", [SystemExit(3)])], ids=repr)
def exit(request: pytest.FixtureRequest) -> BaseException:
    raised: BaseException = request.param
    return raised.with_traceback(None)


def made(log: EventLog, *, processors: Any = (), connector: Any = None, source: Any = None, **more: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("source", source or ScriptedSource(records=6, log=log), batch_size=3)],
        processors=list(processors),
        destinations=[Destination("lake", connector or ScriptedDestination(name="lake", log=log), **more)],
        dead_letters=DeadLetters("drop"),
    )


def steps(exit: BaseException) -> dict[str, Any]:
    """Processors of every form, each of which raises at the record 4, or at its batch."""

    def each(record: Record) -> Record:
        if record.position == b"4":
            raise exit
        return record

    async def each_async(record: Record) -> Record:
        await trio.lowlevel.checkpoint()
        return each(record)

    @processor(batch=True)
    def whole(batch: Batch) -> list[Record]:
        return [each(record) for record in batch]

    @processor(batch=True)
    async def whole_async(batch: Batch) -> list[Record]:
        return [each(record) for record in batch]

    return {
        "each": each,
        "async": each_async,
        "batch": whole,
        "batch async": whole_async,
        "retried": Processor("retried", each, retry=Retry(attempts=2, delay_seconds=0.001)),
        "workers": Processor("workers", each, workers=2),
        "when": Processor("when", lambda record: record, when=lambda record: bool(each(record))),
    }


@pytest.mark.parametrize("form", list(steps(EXITS[0])))
async def test_in_a_processor_it_refuses_the_record(form: str, exit: BaseException) -> None:
    log = EventLog()
    seen = await run_to_end(made(log, processors=[steps(exit)[form]]))

    assert (seen.status, seen.error) == (Status.COMPLETED, None)
    assert log.numbers("lake") == ([0, 1, 2] if form.startswith("batch") else [0, 1, 2, 3, 5])


async def test_in_an_arrow_processor_it_refuses_the_record(exit: BaseException) -> None:
    pa = pytest.importorskip("pyarrow")

    @processor(arrow=pa.schema([("n", pa.int64())]))
    def step(table: Any) -> Any:
        if 4 in table.column("n").to_pylist():
            raise exit
        return table

    log = EventLog()
    records = [Record.of({"n": number}) for number in range(6)]
    await run_to_end(made(log, source=ScriptedSource(records=records, log=log), processors=[step]))

    assert [delivery.record.payload.after for delivery in log.stored["lake"]] == [{"n": n} for n in (0, 1, 2, 3, 5)]


async def test_in_the_condition_of_a_destination_it_refuses_the_record(exit: BaseException) -> None:
    def when(record: Record) -> bool:
        if record.position == b"4":
            raise exit
        return True

    log = EventLog()
    await run_to_end(made(log, when=when))

    assert log.numbers("lake") == [0, 1, 2, 3, 5]


class Shared:
    """A connector that stays one object, and raises in one of its methods."""

    where: str
    raised: BaseException

    def raising(self, where: str, raised: BaseException) -> Any:
        self.where, self.raised = where, raised
        return self

    def fresh(self) -> Any:
        return self

    def at(self, where: str) -> None:
        if where == self.where:
            raise self.raised


class ExitingSource(Shared, sdk.SourceConnector[sdk.Options]):
    def on_created(self) -> None:
        self.at("on_created")

    def open(self, position: bytes | None) -> None:
        self.at("open")
        self.next = 0

    def read(self, n: int) -> list[Record]:
        self.at("read")
        self.next += 1
        if self.next > 3:
            raise EndOfSource
        return [Record.of({"n": self.next}, position=b"%d" % self.next)]

    def ack(self, positions: list[bytes]) -> None:  # type: ignore[override]
        self.at("ack")

    def teardown(self) -> None:
        self.at("teardown")


class AsyncSource(ExitingSource):
    async def read(self, n: int) -> list[Record]:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        return super().read(n)


class InlineSource(ExitingSource):
    blocking = False


class ExitingDestination(Shared, sdk.DestinationConnector[sdk.Options]):
    def open(self) -> None:
        self.at("open")

    def write(self, batch: Batch) -> None:
        self.at("write")

    def flush(self) -> None:
        self.at("flush")

    def teardown(self) -> None:
        self.at("teardown")


@pytest.mark.parametrize("kind", [ExitingSource, AsyncSource, InlineSource])
@pytest.mark.parametrize("where", ["on_created", "open", "read", "ack", "teardown"])
async def test_in_a_source_it_is_an_error_of_that_node(kind: Any, where: str, exit: BaseException) -> None:
    seen = await run_to_end(made(EventLog(), source=kind().raising(where, exit)))

    assert seen.error is not None
    assert (seen.status, seen.error.code, seen.error.node) == (Status.DEGRADED, "node.failed", "source")
    kind_of_exit = "SystemExit(3)" if isinstance(exit, BaseExceptionGroup) else type(exit).__name__
    assert f"source: {where} failed: ExitAttempted: {kind_of_exit}" in seen.error.message


@pytest.mark.parametrize("where", ["open", "write", "flush", "teardown"])
async def test_in_a_destination_it_is_an_error_of_that_node(where: str, exit: BaseException) -> None:
    seen = await run_to_end(made(EventLog(), connector=ExitingDestination().raising(where, exit)))

    assert seen.error is not None
    assert (seen.status, seen.error.code, seen.error.node) == (Status.DEGRADED, "node.failed", "lake")


async def test_a_lag_that_exits_is_only_unknown(exit: BaseException) -> None:
    class WithLag(ExitingSource):
        def lag(self) -> Any:
            self.at("lag")

    seen = await run_to_end(made(EventLog(), source=WithLag().raising("lag", exit)))

    assert seen.status is Status.COMPLETED


@pytest.mark.parametrize("is_async", [False, True])
async def test_in_a_dead_letter_handler_it_leaves_the_record_unacked(is_async: bool, exit: BaseException) -> None:
    def handle(letter: DeadLetter) -> None:
        raise exit

    async def handle_async(letter: DeadLetter) -> None:
        raise exit

    pipeline = made(EventLog(), processors=[steps(ValueError("no"))["each"]])
    pipeline.dead_letters = DeadLetters(handle_async if is_async else handle)
    seen = await run_to_end(pipeline)

    assert seen.error is not None
    assert (seen.status, seen.error.code) == (Status.DEGRADED, "dead_letter.failed")
    assert seen.positions == {"source": b"3"}


async def test_in_a_fate_handler_it_is_an_error_of_the_pipeline(exit: BaseException) -> None:
    @processor(batch=True)
    def step(batch: Batch) -> list[Record]:
        def when_settled(message: object, fate: Fate) -> None:
            raise exit

        batch.on_fate(0, when_settled)
        return list(batch)

    seen = await run_to_end(made(EventLog(), processors=[step]))

    assert seen.status is Status.DEGRADED


async def test_a_pipeline_that_exits_leaves_the_others_of_its_server_alone(exit: BaseException) -> None:
    class Unmakable(ExitingSource):
        def fresh(self) -> Any:
            raise exit

    bad, log = made(EventLog(), source=Unmakable()), EventLog()
    good = made(log)
    good.id = "good"
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery)
        for pipeline in (bad, good):
            await fleet.add(pipeline)
            fleet.start(pipeline.id)
        for member in fleet:
            await member.ended.wait()

        assert fleet["p"].state.status is Status.DEGRADED
    assert log.numbers("lake") == list(range(6))


SCRIPT = """
import signal, sys, trio
import conduit_py
from conduit_connectors import file, generator
from conduit_py import DeadLetters, Destination, Pipeline, Source

def endless(record):
    print("begun", flush=True)
    while True:
        pass

pipeline = Pipeline(
    "p",
    sources=[Source("in", generator.Source(count=3))],
    processors=[endless],
    destinations=[Destination("out", file.Destination(path="out.jsonl"))],
    dead_letters=DeadLetters("drop"),
)
"""
RUN = "conduit_py.run(pipeline)"
RUN_IN_TRIO = """
async def main():
    await conduit_py.run_async(pipeline)
trio.run(main)
"""
RUN_WITH_HANDLER = """
def leave(number, frame):
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
conduit_py.run(pipeline)
"""


def _signal_until_a_traceback(child: "subprocess.Popen[str]", number: signal.Signals) -> str:
    """Signals until a traceback begins: one that came while it is written would cut it short."""
    assert child.stderr is not None
    trace = ""
    while child.poll() is None and "Traceback" not in trace:
        child.send_signal(number)
        if select.select([child.stderr], [], [], 1)[0]:
            trace += os.read(child.stderr.fileno(), 65536).decode()
    return trace


@pytest.mark.parametrize(
    ("program", "number", "raised"),
    [
        (RUN, signal.SIGINT, "KeyboardInterrupt"),
        (RUN_IN_TRIO, signal.SIGINT, "KeyboardInterrupt"),
        (RUN_WITH_HANDLER, signal.SIGTERM, "SystemExit: 5"),
    ],
    ids=["the third Ctrl-C of run", "Ctrl-C in trio", "a signal handler that exits"],
)
def test_a_signal_in_user_code_still_ends_the_program(
    program: str, number: signal.Signals, raised: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + program)
    command = [sys.executable, "script.py"]
    with WarmPython(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        trace = _signal_until_a_traceback(child, number)
        printed, rest = child.communicate(timeout=300)

    assert child.returncode != 0
    assert raised in trace + rest
    # No further record was processed: the signal was not taken for an error of the first one.
    assert printed == ""
