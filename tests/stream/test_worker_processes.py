"""`where="process"`: results, order and errors as in threads; a process that is killed loses and leaves nothing.

What crosses to a process is tested for every style of writing processors with the program of the worker in this
process: a process of its own takes a second to start. A few tests have real ones, and kill them.
"""

import ctypes
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
import trio
from builders import batch_of
from conduit_connectors import generator, memory
from hosted_worker import results_of
from process_tree import processes
from waiting import until
from warm_python import WarmPython

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    Processor,
    Record,
    Recovery,
    Retry,
    Source,
    processor,
    sdk,
)
from conduit_py.batch import Batch, Span
from conduit_py.errors import FatalError, NodeFailed, TransientError
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.owned_process import ProcessLost
from conduit_py.payloads import is_payload, to_plain
from conduit_py.sdk import RecordRefused, State
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Meter
from conduit_py.stream.worker import WorkerPool
from conduit_py.user_errors import code_location

QUICK = Recovery(delay_seconds=0.01, delay_max_seconds=0.01)


def comparable(result: Any) -> Any:
    """A result without what may differ: its object identity, and the traceback of an error."""
    if isinstance(result, list):
        return [comparable(each) for each in result]
    if isinstance(result, Exception):
        return type(result).__name__, str(result), code_location(result)
    return to_plain(result) if is_payload(type(result)) else result


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """A payload of the user's own type."""

    n: int
    deed: str


@dataclass
class Line:
    """Another."""

    n: int
    deed: str


def deed(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the payloads that go on, by what one says about itself."""
    match fields["deed"]:
        case "drop":
            return []
        case "split":
            return [{**fields, "deed": "piece"}, fields, {**fields, "n": -fields["n"]}]
        case "refuse":
            raise RecordRefused(f"{fields['n']} is refused", suggestion="send another")
        case "raise":
            raise KeyError(fields["n"])
        case "exit":
            sys.exit(3)
    return [{**fields, "double": 2 * fields["n"]}] if fields["deed"] == "grow" else [fields]


def _one_of(pieces: list[Any]) -> Any:
    return None if not pieces else pieces[0] if len(pieces) == 1 else pieces


@processor
def by_dict(fields: dict[str, Any]) -> Any:
    return _one_of(deed(fields))


@processor
def by_record(record: Record) -> Any:
    pieces = []
    for fields in deed(record.payload.after):  # type: ignore[arg-type]
        piece = record.copy()
        piece.payload.after, piece.metadata["seen"] = fields, record.position.decode()
        pieces.append(piece)
    return _one_of(pieces)


@processor
async def by_type(order: Order) -> Any:
    await trio.lowlevel.checkpoint()
    return _one_of([Order(each["n"], each["deed"]) for each in deed(msgspec.structs.asdict(order))])


@processor
def by_dataclass(line: Line) -> Any:
    return _one_of([Line(each["n"], each["deed"]) for each in deed({"n": line.n, "deed": line.deed})])


@processor(batch=True)
def by_batch(batch: Batch) -> list[Any]:
    results: list[Any] = []
    for message in batch.messages():
        try:
            message.record.metadata["key"] = f"{message.delivery_key.hex()} {message.id}"
            results.append(by_record.function(message.record))
        except Exception as error:
            results.append(error)
    return results


@processor
def by_metadata(fields: dict[str, Any], metadata: dict[str, str]) -> Any:
    metadata["n"] = str(fields["n"])
    return _one_of(deed(fields))


@processor(asyncio=True)
async def by_asyncio(fields: dict[str, Any]) -> Any:
    import asyncio

    await asyncio.sleep(0)
    return _one_of(deed(fields))


class Counted(sdk.Processor[sdk.Options]):
    """Opens something, which only its own thread may use."""

    def open(self) -> None:
        self.thread = threading.get_ident()

    def process(self, record: Record) -> Any:
        assert self.thread == threading.get_ident()
        return by_record.function(record)


@processor(arrow=True)
def by_table(table: pa.Table) -> pa.Table:
    return table.append_column("more", pa.array([1] * table.num_rows))


STYLES: list[Any] = [
    by_dict, by_record, by_type, by_dataclass, by_batch, by_metadata, by_asyncio, Counted(), by_table,
]  # fmt: skip


def random_batch(rng: random.Random, deeds: list[str], *, payloads: bool) -> Batch:
    values: list[dict[str, Any]] = [{"n": n, "deed": rng.choice(deeds)} for n in range(rng.randint(1, 12))]
    if payloads:
        span = Span("p", "s", 7, [b"at %d" % n for n in range(len(values))])
        return Batch.of_payloads(span, values, range(7, 7 + len(values)), None, dict)
    # Not all messages of the span, and some of them in pieces, as behind another processor.
    records = [Record.of(value, position=b"at %d" % value["n"], key=b"k") for value in values]
    span = Span("p", "s", 7, [b"at %d" % n for n in range(2 * len(values))])
    sequences = [7 + 2 * (n // 2) for n in range(len(values))]
    return Batch(span, records, sequences, [(n % 2,) for n in range(len(values))])


@pytest.mark.parametrize("style", STYLES, ids=lambda style: getattr(style, "name", "class"))
@pytest.mark.parametrize("payloads", [True, False], ids=["payloads", "records"])
async def test_results_are_those_of_threads_in_every_style(style: Any, payloads: bool) -> None:
    deeds = ["keep", "keep", "grow", "drop", "split", "refuse", "raise", "exit"]
    if style in (by_type, by_dataclass, by_table, by_batch):
        # A type has no such field, and an exit fails the whole part of a batch, which differs.
        deeds.remove("exit" if style is by_batch else "grow")

    async def results(where: Any) -> list[Any]:
        rng = random.Random(3)
        batches = [random_batch(rng, deeds, payloads=payloads) for _ in range(12)]
        return await results_of(Processor("node", style, workers=3, where=where), *batches)

    in_threads, in_processes = await results("thread"), await results("process")

    assert list(map(comparable, in_processes)) == list(map(comparable, in_threads))


async def test_values_that_no_json_has_cross_as_they_are() -> None:
    at = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    odd = {"d": Decimal("1.10"), "at": at, "set": {1, 2}, "tuple": (1, [2]), "big": 2**80, "bytes": b"\xff", 5: None}
    span = Span("p", "s", 0, [b"0"])
    batch = Batch.of_payloads(span, [dict(odd)], range(1), None, dict)

    [result] = await results_of(Processor("node", by_values, where="process"), batch)

    assert result == odd
    assert (result["at"].tzinfo.key, result["at"].fold) == ("Europe/Berlin", 1)


@processor
def by_values(fields: dict[str, Any]) -> dict[str, Any]:
    return dict(fields)


async def test_a_record_that_cannot_cross_is_refused_and_its_neighbours_are_not() -> None:
    values: list[Any] = [{"n": n, "deed": "keep"} for n in range(5)]
    values[3]["thing"] = object()
    batch = Batch.of_payloads(Span("p", "s", 0, [b"%d" % n for n in range(5)]), values, range(5), None, dict)

    results = await results_of(Processor("node", by_dict, where="process"), batch)

    assert [each["n"] for each in results if isinstance(each, dict)] == [0, 1, 2, 4]
    assert isinstance(results[3], RecordRefused)
    assert "payload.after.thing is a builtins.object, which cannot be encoded" in str(results[3])


async def test_errors_that_end_the_run_do_so_with_their_class_and_place() -> None:
    @processor
    def busy(record: Record) -> Record:
        raise TransientError("the other side is busy", retry_after=2.5)

    @processor
    def watch(record: Record) -> Record:
        raise FatalError("never")

    @processor(batch=True)
    def settle(batch: Batch) -> list[Record]:
        batch.on_fate(0, lambda message, fate: None)
        return batch.records

    [error] = await results_of(Processor("node", busy, where="process"), batch_of(Record.of({})))
    assert (type(error), error.message, error.retry_after) == (TransientError, "the other side is busy", 2.5)
    assert (code_location(error) or "").endswith("in busy")
    assert "raise TransientError" in str(error.__cause__)
    with pytest.raises(FatalError, match="never"):
        await results_of(Processor("node", watch, where="process"), batch_of(Record.of({})))
    with pytest.raises(FatalError, match="on_fate cannot be used"):
        await results_of(Processor("node", settle, where="process"), batch_of(Record.of({})))


class Edges(sdk.Processor[sdk.Options]):
    """Notes in a file what is called; `fails` is a call that raises."""

    path: Path
    fails: str

    def note(self, call: str) -> None:
        with self.path.open("a") as lines:
            lines.write(f"{call}\n")
        if call == self.fails:
            raise OSError(f"no {call}")

    def open(self) -> None:
        self.note("open")

    def process(self, record: Record) -> Record:
        self.note("process")
        return record

    def close(self) -> None:
        self.note("close")


@pytest.mark.parametrize("fails", ["", "open", "close"])
async def test_open_and_close_frame_the_calls_also_when_one_of_them_fails(fails: str, tmp_path: Path) -> None:
    kind = type("Own", (Edges,), {"path": tmp_path / "calls", "fails": fails})
    running = results_of(Processor("node", kind(), where="process"), batch_of(Record.of({}), Record.of({})))
    if fails:
        with pytest.raises(NodeFailed, match=f"node: {fails} failed: OSError: no {fails}"):
            await running
    else:
        await running

    calls = (tmp_path / "calls").read_text().split()
    assert calls == (["open", "close"] if fails == "open" else ["open", "process", "process", "close"])


def made(*processors: Any, count: int | None = 60, rate: int = 0, into: list[Record], **more: Any) -> Pipeline:
    source = generator.Source(count=count, rate=rate, fields={"id": "index"})
    return Pipeline(
        "p",
        sources=[Source("made", source, batch_size=20)],
        processors=processors,
        destinations=[Destination("list", memory.Destination(into=into))],
        **more,
    )


class TestCheck:
    """What cannot run in a process is a problem of the definition."""

    def problems(self, declared: Any, **more: Any) -> str:
        with pytest.raises(PipelineInvalid) as caught:
            compile_pipeline(made(declared, into=[], **more))
        return str(caught.value)

    def test_state(self) -> None:
        @processor(where="process")
        def count(record: Record, state: State) -> Record:
            return record

        assert "processors.count.where: keeps state" in self.problems(count)

    def test_what_cannot_be_pickled(self) -> None:
        lock = threading.Lock()

        @processor(where="process")
        def locked(record: Record) -> Record:
            with lock:
                return record

        found = self.problems(locked)
        assert "processors.locked.where: cannot be sent to a process: TypeError: cannot pickle '_thread.lock'" in found
        assert "make connections, locks and open files in `open`" in found

    def test_another_place(self) -> None:
        assert "where" in self.problems(Processor("double", by_record, where="cluster"))  # type: ignore[arg-type]


def children() -> list[int]:
    return [each.pid for each in processes(os.getpid()) if "worker_process import main" in each.command]


@processor
def by_pid(record: Record) -> Any:
    n = record.payload["id"]
    if n % 7 == 3:
        raise ValueError(f"not {n}")
    record.payload["pid"] = os.getpid()
    return [record, record] if n == 30 else record


def crash_once(flag: Path, crash: Callable[[], object]) -> Callable[[Record], Any]:
    """A processor whose process crashes at the record 33, once."""

    def crashing(record: Record) -> Any:
        if record.payload["id"] == 33 and not flag.exists():
            flag.touch()
            crash()
        return by_pid.function(record)

    return crashing


async def test_order_and_refusals_are_kept_when_a_process_is_killed_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    into: list[Record] = []
    letters: list[Any] = []
    crash = crash_once(tmp_path / "flag", lambda: os.kill(os.getpid(), signal.SIGKILL))
    declared = Processor(
        "by_pid", crash, workers=2, where="process", retry=Retry(attempts=3, delay_seconds=0.01),
        when=lambda record: record.payload["id"] < 50,
    )  # fmt: skip
    supervisor = Supervisor(made(declared, into=into, dead_letters=DeadLetters(letters.append)), MemoryStore())

    with caplog.at_level(logging.ERROR, logger="conduit_py"):
        state = await supervisor.run()

    assert (state.status, supervisor.progress().recoveries) == (Status.COMPLETED, 0)
    expected = [n for n in range(60) for _ in range(2 if n == 30 else 1) if n % 7 != 3 or n >= 50]
    assert [record.payload["id"] for record in into] == expected
    pids = {record.payload.after.get("pid") for record in into} - {None}  # type: ignore[union-attr]
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert [letter.record.payload["id"] for letter in letters] == [3, 10, 17, 24, 31, 38, 45]
    assert letters[0].error == "ValueError: not 3"
    assert letters[0].failures[0].location.endswith("in by_pid")
    assert ": its process was ended by SIGKILL" in caplog.text
    assert children() == []


async def test_without_a_retry_a_crash_is_a_transient_error_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    into: list[Record] = []
    crash = crash_once(tmp_path / "flag", lambda: ctypes.string_at(0))
    declared = Processor("crash", crash, where="process", when=lambda record: record.payload["id"] % 7 != 3)
    supervisor = Supervisor(made(declared, into=into), MemoryStore(), recovery=QUICK)

    with caplog.at_level(logging.INFO, logger="conduit_py"):
        state = await supervisor.run()

    assert (state.status, supervisor.progress().recoveries) == (Status.COMPLETED, 1)
    assert sorted({record.payload["id"] for record in into}) == list(range(60))
    assert "crash, worker 1: its process was ended by SIGSEGV" in caplog.text
    assert Path(__file__).name in caplog.text, "the line of the user's function, as the interpreter left it"
    assert children() == []


async def test_a_forceful_stop_ends_a_call_and_its_process(tmp_path: Path) -> None:
    flag = tmp_path / "begun"

    @processor(where="process")
    def endless(record: Record) -> Record:
        flag.touch()
        while True:
            pass

    supervisor = Supervisor(made(endless, into=[]), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(flag.exists)
        assert len(children()) == 1
        supervisor.force()

    assert supervisor.state.status is Status.STOPPED
    assert children() == []


async def test_processors_are_exchanged_while_they_run() -> None:
    into: list[Record] = []

    def version(number: int) -> Pipeline:
        @processor(where="process", name="mark")
        def mark(record: Record) -> Record:
            record.payload["version"] = number
            return record

        return made(mark, into=into, count=None, rate=200)

    supervisor = Supervisor(version(1), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(lambda: into)
        [before] = children()
        await supervisor.swap(compile_pipeline(version(2)), ["mark"])
        await until(lambda: into[-1].payload["version"] == 2 and before not in children())
        supervisor.stop()

    assert [record.payload["id"] for record in into] == list(range(len(into)))
    versions = [record.payload["version"] for record in into]
    assert versions == sorted(versions)
    assert children() == []


ORPHANS = """
import os
from conduit_connectors import generator, memory
from conduit_py import Destination, Pipeline, Source, processor, run

@processor(where="process")
def busy(record):
    print(os.getpid(), flush=True)
    while True:
        pass

run(Pipeline("p", sources=[Source("made", generator.Source(count=9))], processors=[busy],
             destinations=[Destination("list", memory.Destination(into=[]))]))
"""


def test_no_process_outlives_one_that_is_killed() -> None:
    with WarmPython([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        owner.kill()
        # Its end closes the pipe: the worker holds the other end of it.
        assert owner.stdout.read() == ""
    assert not [each for each in processes(worker) if each.pid == worker and each.command]


async def test_a_process_that_cannot_be_started_is_a_transient_error() -> None:
    declared = Processor("by_pid", by_pid, where="process")
    pool = WorkerPool("node", declared, Meter("node", "processor"), random.Random(1))
    executable, sys.executable = sys.executable, "/nowhere/python"
    try:
        with pytest.raises(ProcessLost, match="node, worker 1: no process can be started: No such file"):
            await pool.open()
    finally:
        sys.executable = executable
    assert children() == []
