"""The program that runs one pipeline on Spark for a server: `python -m conduit_py.spark.child.program SOCKET SERVER`.

The server sends the pipeline and keeps all durable state. Without the server nothing can be made durable, so the
program ends at once when the server is gone.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec
import trio

from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Pipeline, derive
from conduit_py.spark.child.process import (
    TO_CHILD,
    ChildLink,
    LettersQueued,
    LogLine,
    PipelineEnded,
    ProgressReport,
    StartPipeline,
    StopPipeline,
    StoreReply,
    ToChild,
    recovery_in,
)
from conduit_py.spark.child.store import ChildStore
from conduit_py.wire_error import WireError, safe_text

REPORT_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """The entry point."""
    descriptor, server = int(sys.argv[1]), int(sys.argv[2])
    _die_with(server)
    trio.run(_run, socket.socket(fileno=descriptor))
    # Not sys.exit, which would wait for abandoned threads.
    sys.stdout.flush()
    os._exit(0)


def _die_with(server: int) -> None:
    """Have the operating system kill this process with its server, where it can: a stuck event loop notices nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Invariant C3: the server may have ended before the kernel was asked to watch it.
    if os.getppid() != server:
        os._exit(1)


async def _run(connected: socket.socket) -> None:
    connected.setblocking(False)
    link = ChildLink(trio.SocketStream(trio.socket.from_stdlib_socket(connected)), TO_CHILD)
    begin = await link.receive()
    if isinstance(begin, StartPipeline):
        _log_to_stderr(debug=begin.debug)
        try:
            await link.send(await _run_pipeline(link, begin))
        except trio.BrokenResourceError:
            os._exit(1)


async def _run_pipeline(link: ChildLink[ToChild], begin: StartPipeline) -> PipelineEnded:
    store = ChildStore(link)
    try:
        supervisor = _supervisor(begin, store)
    except Exception as error:  # a plugin boundary: the user's code is loaded, and may need what is not installed
        return PipelineEnded(error=WireError.of(error))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_listen, link, store, supervisor)
        nursery.start_soon(_report, link, supervisor)
        state = await supervisor.run()
        nursery.cancel_scope.cancel()
    return PipelineEnded(state, supervisor.progress())


def _supervisor(begin: StartPipeline, store: ChildStore) -> Supervisor:
    # Before anything is unpickled: the modules of the user are found as the server finds them.
    sys.path[:] = begin.path
    from pyspark import cloudpickle

    sent: Pipeline = cloudpickle.loads(begin.pipeline)
    pipeline = derive(sent, settings=sent.settings.model_copy(update={"recovery": recovery_in(begin)}))
    if pipeline.spark is None:
        return Supervisor(pipeline, store)
    from conduit_py.spark.engine.supervisor import spark_supervisor

    return spark_supervisor(pipeline, store)


async def _listen(link: ChildLink[ToChild], store: ChildStore, supervisor: Supervisor) -> None:
    while (message := await link.receive()) is not None:
        if isinstance(message, StoreReply):
            store.answer(message)
        elif isinstance(message, LettersQueued):
            store.letters.notice()
        elif isinstance(message, StopPipeline):
            (supervisor.force if message.force else supervisor.stop)(message.by)
    # Invariant C3: the server is gone. Java ends when this process does.
    os._exit(1)


async def _report(link: ChildLink[ToChild], supervisor: Supervisor) -> None:
    while True:
        await link.send(ProgressReport(supervisor.state, supervisor.progress()))
        await trio.sleep(REPORT_SECONDS)


def _log_to_stderr(*, debug: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("conduit_py", "conduit_connectors", "conduit_processors"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class _Lines(logging.Formatter):
    """Formats a record as a LogLine, which the server logs as its own."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        message, facts = safe_text(record.getMessage()), getattr(record, "facts", {})
        line = LogLine(record.levelno, record.name, message, record.created, traceback, facts)
        return msgspec.json.encode(line).decode()


if __name__ == "__main__":
    main()
