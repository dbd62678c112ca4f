"""One contender, once, in this process, with observers or without: what `benchmarks.observed` counts."""

import ctypes
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from mmap import PROT_EXEC, PROT_READ, PROT_WRITE, mmap
from pathlib import Path
from typing import Any

import trio

from benchmarks import pipelines
from benchmarks.once import WARM_UP_RECORDS
from benchmarks.styles import STYLES
from benchmarks.works import WORKS
from conduit_py import Pipeline, Status
from conduit_py.cli.run import observing
from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.exactly_once.gate import Sealed
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.memory import MemoryStore
from conduit_py.stream import wiring
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.telemetry.metrics_text import add_nodes

START_COUNTING, STOP_COUNTING = 0x4354_0004, 0x4354_0005
CLIENT_REQUEST = bytes.fromhex("4889f8 4889f2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
"""For x86-64: the arguments into rax and rdx, rotations of rdi by 128 in all, `xchg rbx, rbx`, and the answer."""

WITHOUT, OFF = "no hooks", "off"
"""Without the places where an observer could be; with them, and without an observer. Others are names of observers."""
ONE_SPAN, ALL_SPANS = "otel, one span", "otel, all spans"
"""Whatever the clock says: each batch has its own span alone, or those of all nodes too."""
NEVER, ALWAYS = (0, 1e-9), (10**9, 1e9)


def run_once(way: str, work: str, style: str, records: int, folder: Path) -> None:
    """Do the work, with the state in memory: a little of it first, then all of it, which valgrind counts.

    Prints the CPU seconds of the second part.
    """
    if way == WITHOUT:
        remove_hooks()
    names = [] if way in (WITHOUT, OFF) else way.partition(",")[0].split("+")
    if way in (ONE_SPAN, ALL_SPANS):
        fix_spans(ALWAYS if way == ALL_SPANS else NEVER)
    pipelines.run_to_end = partial(_run_observed, names)
    contender = pipelines.file_to_file(STYLES[style].from_fields, "exactly_once", in_memory=True)
    if work != "W4m":
        contender = WORKS[work].contenders[f"conduit-py, {style}"]
    contender(WARM_UP_RECORDS, folder / "warm-up")
    ask_callgrind(START_COUNTING)
    began = time.process_time()
    contender(records, folder / "run")
    seconds = time.process_time() - began
    ask_callgrind(STOP_COUNTING)
    print(seconds)


def ask_callgrind(request: int) -> None:
    """Send a request of callgrind.h. Valgrind knows it by instructions that elsewhere do nothing."""
    with mmap(-1, len(CLIENT_REQUEST), prot=PROT_READ | PROT_WRITE | PROT_EXEC) as code:
        code.write(CLIENT_REQUEST)
        start = ctypes.c_char.from_buffer(code)
        call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(ctypes.addressof(start))
        arguments = (ctypes.c_uint64 * 6)(request)
        call(ctypes.addressof(arguments), 0)
        del start


def remove_hooks() -> None:
    """Make the parts of a run, and commit its transactions, as if nobody could observe them."""

    class NoHooks(wiring.Instruments):
        """Is called for nothing that a record passes."""

        new_ledger: Any = staticmethod(Ledger)
        new_processor: Any = staticmethod(ProcessorNode)
        new_writer_calls: Any = staticmethod(PluginCaller)

    def only_time(self: CommitTogether, sealed: Sealed) -> ExitStack:
        stack = ExitStack()
        for source in sealed.positions:
            meter = self._parts.meters[source]
            stack.enter_context(meter.waiting(None, timing=meter.checkpoints))
        return stack

    wiring.INSTRUMENTS.set(lambda pipeline: NoHooks())
    CommitTogether._timing = only_time  # type: ignore[method-assign]


def fix_spans(of_nodes: tuple[int, float]) -> None:
    """Give each batch a span, and this many the spans of nodes: under valgrind the clock would decide."""
    from conduit_py.telemetry import open_telemetry

    open_telemetry.BATCHES, open_telemetry.DETAILED = ALWAYS, of_nodes


def _run_observed(names: Sequence[str], pipeline: Pipeline, folder: Path | None) -> None:
    """Run as `conduit-py run --observe` does, with the state in memory."""

    async def run() -> Status:
        graph = compile_pipeline(pipeline)
        supervisor = Supervisor(graph, MemoryStore())
        async with observing(names, lambda sink: add_nodes(sink, graph, supervisor.progress())):
            return (await supervisor.run()).status

    status = trio.run(run)
    assert status is Status.COMPLETED, status


if __name__ == "__main__":
    way, work, style, records, folder = sys.argv[1:]
    run_once(way, work, style, int(records), Path(folder))
