"""OwnedProcess: a process that works for this one, with everything that it starts, and ends with it.

ChildLink is the connection to it. Code is sent to it by `pickle_by_value`, and records never are. What it logs becomes
lines of the log here. The last part runs in the process itself.
"""

import gc
import importlib
import io
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec
import trio

from conduit_py import defaults
from conduit_py.errors import TransientError, describe
from conduit_py.wire_error import safe_text

log = logging.getLogger("conduit_py")

Inbound = TypeVar("Inbound")

FRAME_MAX = 64 * 1024 * 1024 * 1024
"""The size limit of a message. A larger length means that the peer is not ours."""
_LENGTH = struct.Struct(">Q")
LINE_MAX = 64 * 1024
KEPT_LINES = 5
EXIT_SECONDS = 2.0
SEE_LOG = "see the lines before it in the log; the usual reason for SIGKILL is that memory ran out"
ROUTINE_LINES = (
    "WARNING: Using incubator", "Setting default log level", "To adjust logging", "Setting Spark log level", "\tat ",
)  # fmt: skip
"""How lines begin that Java prints at every start and after every error."""


class ProcessLost(TransientError):
    """A process ended before its work did: it was killed, or Java or Python crashed."""

    code = "process.lost"


class ChildLink(Generic[Inbound]):
    """One end of the connection. Messages arrive whole and in the order of sending, or not at all."""

    def __init__(self, connected: trio.abc.HalfCloseableStream, inbound: "msgspec.msgpack.Decoder[Inbound]") -> None:
        self._stream = connected
        self._inbound = inbound
        self._sending = trio.Lock()
        # Kept across calls: a cancelled `receive` must not lose the part of a message that has arrived.
        self._received = bytearray()
        self.ended = False
        """Whether the peer has closed the connection."""

    async def send(self, message: msgspec.Struct, *, shield: bool = True) -> None:
        """Send a message. Raises trio.BrokenResourceError when the peer is gone.

        Without the shield it can be cancelled, and then nothing more may be sent.
        """
        data = msgspec.msgpack.encode(message)
        assert len(data) <= FRAME_MAX, f"a message of {len(data)} bytes"
        async with self._sending:
            # After half a message the peer would misread all that follow.
            with trio.CancelScope(shield=shield):
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


class LogLine(msgspec.Struct, frozen=True):
    """A line of the log of a process, as JSON on its stderr."""

    level: int
    logger: str
    message: str
    at: float
    traceback: str | None = None
    facts: dict[str, Any] = {}
    """What the line is about, for logs in JSON."""


class OwnedProcess(Generic[Inbound]):
    """A process of this Python. Neither it nor anything that it started is left after `reap`."""

    def __init__(
        self, name: str, program: Sequence[str], inbound: "msgspec.msgpack.Decoder[Inbound]", *options: str
    ) -> None:
        """Start it. Raises OSError if that is not possible."""
        self.name = name
        """How the log calls it."""
        here, there = socket.socketpair()
        debug = ["debug"] if log.isEnabledFor(logging.DEBUG) else []
        try:
            # Started from this thread, which lives as long as the work: PDEATHSIG fires when the starting thread ends.
            with there:
                self._process = subprocess.Popen(
                    # -P: a file in the working directory must not shadow a module.
                    [sys.executable, "-P", *program, str(there.fileno()), str(os.getpid()), *options, *debug],
                    pass_fds=(there.fileno(),),
                    stderr=subprocess.PIPE,
                    # A process group of its own: Ctrl-C goes to this one alone, and what it starts is killed with it.
                    start_new_session=True,
                )
        except OSError:
            here.close()
            raise
        self.pid = self._process.pid
        here.setblocking(False)
        self.link: ChildLink[Inbound] = ChildLink(trio.SocketStream(trio.socket.from_stdlib_socket(here)), inbound)
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reaped = False
        self.log_ended = trio.Event()
        """Set when `relay_log` has logged its last line."""

    def kill(self) -> None:
        """Kill it at once, with everything that it started."""
        # Once it is waited for, its pid may be that of another process.
        if not self._reaped:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _lives(self) -> bool:
        # WNOWAIT: once it is waited for, its pid may be reused, and `kill` would hit another process.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    async def reap(self) -> None:
        """Kill what is left of it and wait until it is gone. One about to end gets a moment, for its exit code."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(EXIT_SECONDS):
                while self._lives():  # noqa: ASYNC110 - the end of a process sets no event
                    await trio.sleep(0.01)
            # Also one that has ended by itself: Java and its workers are in the group and may still run.
            self.kill()
            self._reaped = True
            await trio.to_thread.run_sync(self._process.wait)
            await self.link.aclose()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def describe_end(self) -> str:
        """How it ended, and its last line. Only after `reap`."""
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended by itself with exit code {code}"
        last = f"; its last line was: {self._last_lines[-1]}" if self._last_lines else ""
        return how + last

    async def relay_log(self) -> None:
        """Log what it logs and what Java prints, until it has ended."""
        assert self._process.stderr is not None
        # A duplicate, because trio closes its descriptor and `reap` closes the pipe.
        lines = trio.lowlevel.FdStream(os.dup(self._process.stderr.fileno()))
        try:
            async with lines:
                async for line in _lines(lines):
                    self._relay(line)
        except Exception:  # a handler of the user's log: no task of ours may end for it
            log.debug("%s: its log cannot be relayed", self.name, exc_info=True)
        finally:
            self.log_ended.set()

    def _relay(self, line: bytes) -> None:
        try:
            logged = msgspec.json.decode(line, type=LogLine)
        except msgspec.DecodeError:
            self._relay_text(safe_text(line.decode(errors="replace")).rstrip())
            return
        logger = logging.getLogger(logged.logger)
        if logger.isEnabledFor(logged.level):
            # A line about a pipeline names it already.
            named = logged.message if logged.facts else f"{self.name}: {logged.message}"
            text = named + (f"\n{logged.traceback}" if logged.traceback else "")
            record = logger.makeRecord(logged.logger, logged.level, "", 0, text, (), None)
            record.facts = logged.facts
            record.created = logged.at
            logger.handle(record)

    def _relay_text(self, text: str) -> None:
        routine = text.startswith(ROUTINE_LINES)
        log.log(logging.DEBUG if routine else logging.INFO, "%s: %s", self.name, text)
        if not routine:
            self._last_lines.append(text)


async def _lines(received: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """Whole lines; one longer than LINE_MAX is cut."""
    held = bytearray()
    while more := await received.receive_some(LINE_MAX):
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


PICKLE_HINT = "make connections, locks and open files in `open`, not where the file is loaded"
# cloudpickle keeps the modules that go by value for the whole process: two threads must not change them at once.
_LOCK = threading.Lock()


def pickle_by_value(content: object, files: Iterable[str], pickler: str = "cloudpickle") -> bytes:
    """Pickle an object, with the modules in the folders of these files by value.

    The other process may not have those files, or has newer ones. Raises whatever the user's objects raise.
    """
    cloudpickle: Any = importlib.import_module(pickler)
    # Not <stdin> and <string>: there is no folder of theirs, and `.` is that of modules inside of Python.
    folders = {Path(file).parent for file in files if not file.startswith("<")}
    with _LOCK, _by_value(cloudpickle, _modules_in(folders)):
        into = io.BytesIO()
        _pickler_class(cloudpickle)(into).dump(content)
        return into.getvalue()


@lru_cache
def _pickler_class(cloudpickle: Any) -> Any:
    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, item: Any) -> Any:
            # What msgspec remembers of a dataclass cannot be pickled, and it makes it again.
            if isinstance(item, type) and "__msgspec_cache__" in vars(item):
                del item.__msgspec_cache__  # type: ignore[attr-defined]
            return super().reducer_override(item)

    return Pickler


def why_not_pickled(content: object, files: Iterable[str], pickler: str = "cloudpickle") -> str | None:
    """Return why an object cannot be pickled; None if it can be."""
    try:
        pickle_by_value(content, files, pickler)
    except Exception as error:  # a plugin boundary: the user's objects run code when they are pickled
        return describe(error)
    return None


def _modules_in(folders: set[Path]) -> list[ModuleType]:
    """The user's modules in these folders. Installed packages are not among them."""
    ours = Path(__file__).parent
    return [
        module
        # A copy: another thread may import while this runs.
        for name, module in list(sys.modules.items())
        if (folder := _folder_of(module)) in folders and ours not in (folder, *folder.parents) and name != "__main__"
    ]


def _folder_of(module: ModuleType) -> Path:
    """The folder in which a top-level module or package is; a pipeline file has its path in its spec alone."""
    file = getattr(module, "__file__", None) or getattr(getattr(module, "__spec__", None), "origin", None)
    return _parent(file, 1 + hasattr(module, "__path__")) if isinstance(file, str) else Path("/nowhere")


# A server pickles hundreds of pipelines, and has thousands of modules.
@lru_cache(maxsize=20_000)
def _parent(file: str, levels: int) -> Path:
    return Path(file).parents[levels - 1] if len(Path(file).parents) >= levels else Path("/nowhere")


@contextmanager
def _by_value(cloudpickle: Any, modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


# Everything below runs in the process itself.

_PR_SET_PDEATHSIG = 1


def join_owner() -> socket.socket:
    """Begin a program that an OwnedProcess runs; return the connection to its owner, with which it ends."""
    descriptor, owner = int(sys.argv[1]), int(sys.argv[2])
    # The operating system kills this process with its owner, where it can: a stuck event loop notices nothing.
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Invariant C3: the owner may have ended before the kernel was asked to watch it.
    if os.getppid() != owner:
        os._exit(1)
    # As the owner itself: a start makes many objects and no garbage.
    gc.set_threshold(defaults.YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("conduit_py", "conduit_connectors", "conduit_processors"):
        logging.getLogger(name).setLevel(logging.DEBUG if "debug" in sys.argv else logging.INFO)
    return socket.socket(fileno=descriptor)


class _Lines(logging.Formatter):
    """Formats a record as a LogLine, which the owner logs as its own."""

    def format(self, record: logging.LogRecord) -> str:
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        message, facts = safe_text(record.getMessage()), getattr(record, "facts", {})
        line = LogLine(record.levelno, record.name, message, record.created, traceback, facts)
        return msgspec.json.encode(line).decode()
