"""ChildProcess: the process in which a pipeline runs on Spark, with the Java that it starts, and the messages to it."""

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import trio

from conduit_py.backoff import Recovery
from conduit_py.errors import TransientError
from conduit_py.status import PipelineState, Stopper
from conduit_py.stream.meter import Progress
from conduit_py.wire_error import WireError, safe_text

log = logging.getLogger("conduit_py.spark")

LINE_MAX = 64 * 1024
KEPT_LINES = 5
LOG_SECONDS = 1.0
EXIT_SECONDS = 2.0
ROUTINE_LINES = (
    "WARNING: Using incubator", "Setting default log level", "To adjust logging", "Setting Spark log level", "\tat ",
)  # fmt: skip
"""How lines begin that Java prints at every start and after every error."""


class ProcessLost(TransientError):
    """The process of a pipeline ended before the pipeline did: it was killed, or Java or Python crashed."""

    code = "process.lost"


class LogLine(msgspec.Struct, frozen=True):
    """A line of the child's log, as JSON on its stderr."""

    level: int
    logger: str
    message: str
    at: float
    traceback: str | None = None
    facts: dict[str, Any] = {}
    """What the line is about, for logs in JSON."""


class ChildProcess:
    """A child process. Neither it nor anything that it started outlives the `start_child` block."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        here, there = socket.socketpair()
        # Started from this thread, which lives as long as the server: PDEATHSIG fires when the starting thread ends.
        with there:
            self._process = subprocess.Popen(
                # -P: a file in the working directory must not shadow a module.
                [sys.executable, "-P", "-m", "conduit_py.spark.child.program", str(there.fileno()), str(os.getpid())],
                pass_fds=(there.fileno(),),
                stderr=subprocess.PIPE,
                # A process group of its own: Ctrl-C goes to the server alone, and Java can be killed with it.
                start_new_session=True,
            )
        here.setblocking(False)
        self.link: ChildLink[ToServer] = ChildLink(trio.SocketStream(trio.socket.from_stdlib_socket(here)), TO_SERVER)
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill it at once, with everything that it started."""
        # It was not waited for yet, so its pid cannot have been reused.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _runs(self) -> bool:
        # WNOWAIT: once it is waited for, its pid may be reused, and `kill` would hit another process.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    def loss_error(self) -> ProcessLost:
        """The error for a process that was lost, with how it ended. Only after `reap`."""
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended by itself with exit code {code}"
        last = f"; its last line was: {self._last_lines[-1]}" if self._last_lines else ""
        return ProcessLost(
            f"the process in which {self._pipeline} runs on Spark {how}{last}",
            suggestion="see the lines before it in the log; the usual reason for SIGKILL is that memory ran out",
        )

    async def relay_log(self) -> None:
        """Log what it logs and what Java prints, until it has ended."""
        assert self._process.stderr is not None
        # A duplicate, because trio closes its descriptor and `reap` closes the pipe.
        stream = trio.lowlevel.FdStream(os.dup(self._process.stderr.fileno()))
        async with stream:
            async for line in _lines(stream):
                self._relay(line)

    def _relay(self, line: bytes) -> None:
        try:
            logged = msgspec.json.decode(line, type=LogLine)
        except msgspec.DecodeError:
            self._relay_text(safe_text(line.decode(errors="replace")).rstrip())
            return
        logger = logging.getLogger(logged.logger)
        if logger.isEnabledFor(logged.level):
            # A line about a pipeline names it already.
            named = logged.message if logged.facts else f"{self._pipeline}: {logged.message}"
            text = named + (f"\n{logged.traceback}" if logged.traceback else "")
            record = logger.makeRecord(logged.logger, logged.level, "", 0, text, (), None)
            record.facts = logged.facts
            record.created = logged.at
            logger.handle(record)

    def _relay_text(self, text: str) -> None:
        routine = text.startswith(ROUTINE_LINES)
        log.log(logging.DEBUG if routine else logging.INFO, "%s: %s", self._pipeline, text)
        if not routine:
            self._last_lines.append(text)

    async def reap(self) -> None:
        """Kill what is left of it and wait until it is gone. One about to end gets a moment, for its exit code."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(EXIT_SECONDS):
                while self._runs():  # noqa: ASYNC110 - the end of a process sets no event
                    await trio.sleep(0.01)
            # Also one that has ended by itself: Java and its workers are in the group and may still run.
            self.kill()
            await trio.to_thread.run_sync(self._process.wait)
        await self.link.aclose()
        assert self._process.stderr is not None
        self._process.stderr.close()


@asynccontextmanager
async def start_child(pipeline: str) -> AsyncIterator[ChildProcess]:
    """A process for a pipeline, for as long as the block runs: two processes never run the same pipeline."""
    try:
        child = ChildProcess(pipeline)
    except OSError as error:
        raise ProcessLost(f"no process can be started for {pipeline}: {error.strerror or error}") from error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.relay_log)
        try:
            yield child
        finally:
            # Invariant C2: the block does not end before the process group has.
            await child.reap()
            # Python workers of Spark may keep stderr open a moment longer.
            nursery.cancel_scope.deadline = trio.current_time() + LOG_SECONDS


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """Whole lines; one longer than LINE_MAX is cut."""
    held = bytearray()
    while more := await stream.receive_some(LINE_MAX):
        held += more
        for line in _split_lines(held):
            yield line
    if held:
        yield bytes(held)


def _split_lines(held: bytearray) -> Iterator[bytes]:
    # Bounded: a child that prints without a line break must not fill the memory of the server.
    while (end := held.find(b"\n")) >= 0 or len(held) > LINE_MAX:
        size = end + 1 if end >= 0 else LINE_MAX
        line = bytes(held[:size])
        del held[:size]
        if line.strip():
            yield line


Inbound = TypeVar("Inbound")

FRAME_MAX = 1024 * 1024 * 1024
"""The size limit of a message. A larger length means that the peer is not ours."""
_LENGTH = struct.Struct(">I")


class StartPipeline(msgspec.Struct, frozen=True, tag=True):
    """The first message, from the server: the pickled pipeline, and `sys.path` to import it with."""

    pipeline: bytes
    recovery: str
    """As JSON."""
    path: list[str]
    debug: bool


class StopPipeline(msgspec.Struct, frozen=True, tag=True):
    """From the server: stop gracefully or, with `force`, at once. Sent again when the request becomes stronger."""

    by: Stopper
    force: bool


class LettersQueued(msgspec.Struct, frozen=True, tag=True):
    """From the server: dead letters of the pipeline were queued for replay."""


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    """From the server: the result of a call. A change is durable before this is sent."""

    number: int
    result: bytes = b""
    error: WireError | None = None


class StoreCall(msgspec.Struct, frozen=True, tag=True):
    """From the child: a call of the store."""

    number: int
    name: str
    arguments: bytes


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """From the child, several times a second: the state and progress of the pipeline."""

    state: PipelineState
    progress: Progress


class PipelineEnded(msgspec.Struct, frozen=True, tag=True):
    """The last message, from the child: how the pipeline ended, or why it could not start."""

    state: PipelineState | None = None
    progress: Progress | None = None
    error: WireError | None = None


ToChild: TypeAlias = StartPipeline | StopPipeline | LettersQueued | StoreReply
ToServer: TypeAlias = StoreCall | ProgressReport | PipelineEnded
TO_CHILD = msgspec.msgpack.Decoder(ToChild)
TO_SERVER = msgspec.msgpack.Decoder(ToServer)


def recovery_in(begin: StartPipeline) -> Recovery:
    return Recovery.model_validate_json(begin.recovery)


class ChildLink(Generic[Inbound]):
    """One end of the connection. Messages arrive whole and in the order of sending, or not at all."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, inbound: "msgspec.msgpack.Decoder[Inbound]") -> None:
        self._stream = stream
        self._inbound = inbound
        self._sending = trio.Lock()
        # Kept across calls: a cancelled `receive` must not lose the part of a message that has arrived.
        self._received = bytearray()
        self.ended = False
        """Whether the peer has closed the connection."""

    async def send(self, message: ToChild | ToServer) -> None:
        """Send a message. Raises trio.BrokenResourceError when the peer is gone."""
        data = msgspec.msgpack.encode(message)
        assert len(data) <= FRAME_MAX, f"a message of {len(data)} bytes"
        async with self._sending:
            # After half a message the peer would misread all that follow.
            with trio.CancelScope(shield=True):
                await self._stream.send_all(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Inbound | None:
        """The next message; None when the peer is gone."""
        try:
            head = await self._exactly(_LENGTH.size)
            body = head and await self._exactly(_LENGTH.unpack(head)[0])
        except trio.BrokenResourceError:
            # A peer that was killed resets the connection, which is its end like any other.
            body = None
        self.ended = not body
        return self._inbound.decode(body) if body else None

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def _exactly(self, size: int) -> bytes | None:
        # Before the first byte is awaited: a wrong length would collect data without end.
        assert size <= FRAME_MAX, f"a message of {size} bytes"
        while len(self._received) < size:
            more = await self._stream.receive_some()
            if not more:
                return None
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
