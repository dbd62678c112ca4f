"""A server program on loopback, run by a user without rights, and one that all workers of a test run share."""

import ctypes
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import pytest

START_SECONDS = 300.0
"""How long a server may take to answer. A busy machine is slow, not broken."""


class ServerProcess:
    """A program that listens on `port` of loopback. It ends with this process, however that ends."""

    def __init__(self, log: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        command: Sequence[str],
        *,
        libraries: str = "",
        answers: Callable[[], bool] | None = None,
        user: int | None = None,
        how_to_end: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Run the program and wait until it takes connections, and until `answers()` is true."""

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=self._log.open("ab"),
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent(how_to_end),
                **_surroundings(libraries, user),
            )

        # Where it can, the main thread itself: a fork in another one ends what belongs to the main thread in the copy.
        # The copy shares some of that with this process, such as a connection to Spark's Java.
        in_main = threading.current_thread() is threading.main_thread()
        process = self._process = start() if in_main else _starter().submit(start).result()
        deadline = time.monotonic() + START_SECONDS
        while not (self._listens() and (answers is None or answers())):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} does not answer on port {self.port}: {self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        """The end of what the program has printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "only the process that started a server can kill it"
        return self._process.pid

    def kill(self) -> None:
        """`kill -9` of the server and of every process that it started."""
        below = _children(self.pid)
        self.stop(signal.SIGKILL)
        for pid in below:
            _kill_and_wait(pid)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class LoopbackService(ServerProcess):
    """A server with a folder of its own, run by a user without rights."""

    name: ClassVar[str]

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder / "log", port)
        self.folder = folder
        self._user = user_without_rights()

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        """A server for the caller alone, in a folder that is removed with it."""
        # Not pytest's own folder: other users may not enter that one.
        folder = Path(tempfile.mkdtemp(prefix=f"conduit-{cls.name}-"))
        if os.geteuid() == 0:
            user = user_without_rights()
            os.chown(folder, user, pwd.getpwuid(user).pw_gid)
        server = cls(folder)
        try:
            server.initialise()
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def initialise(self) -> None:
        """Prepare the folder, once, before the first start."""

    def start(self) -> None:
        raise NotImplementedError

    def _call(self, command: Sequence[str], libraries: str = "") -> str:
        settings = _surroundings(libraries, self._user)
        done = subprocess.run(list(command), capture_output=True, timeout=START_SECONDS, **settings)
        if done.returncode:
            pytest.fail(f"{' '.join(command)}: {done.stdout.decode()[-2000:]}{done.stderr.decode()[-2000:]}")
        return str(done.stdout, "utf-8")


ServiceT = TypeVar("ServiceT", bound=LoopbackService)


@contextmanager
def share_service(kind: type[ServiceT], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceT]:
    """One server for all tests of a run. Only the worker that started it can kill it."""
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder below that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / kind.name
    with share(folder, partial(_describe, kind)) as text:
        place = json.loads(text)
        yield kind(Path(place["folder"]), place["port"])


@contextmanager
def _describe(kind: type[LoopbackService]) -> Iterator[str]:
    with kind.started() as server:
        yield json.dumps({"folder": str(server.folder), "port": server.port})


_started: list[tuple[Path, ExitStack]] = []
"""What this process started for all workers, and stops last."""


@contextmanager
def share(folder: Path, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """What `start` gives, once for all workers of pytest-xdist. The first worker starts it, `stop_shared` stops it."""
    given, users = folder / "given", folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not given.exists():
            stack = ExitStack()
            given.write_text(stack.enter_context(start()))
            _started.append((folder, stack))
        (users / str(os.getpid())).touch()
    try:
        yield given.read_text()
    finally:
        (users / str(os.getpid())).unlink()


def stop_shared() -> None:
    """Stop what this process shares, each when no other worker uses it.

    A process has left all that others share before it waits here: workers that wait for each other would never end.
    """
    while _started:
        folder, stack = _started.pop()
        while not _retire(folder):
            time.sleep(0.2)
        stack.close()


def _retire(folder: Path) -> bool:
    with locked(folder):
        unused = not any(_is_alive(int(user.name)) for user in (folder / "users").iterdir())
        if unused:
            (folder / "given").unlink()
        return unused


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out that lock the same folder."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _starter() -> ThreadPoolExecutor:
    """The thread that starts servers for threads that end before the process, such as idle ones of trio.

    For the kernel the thread that starts a process is its parent, and a server ends with its parent.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="conduit-servers")


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Have the kernel stop a process when the thread that started it has gone, killed or not."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(1, int(how), 0, 0, 0)

    return ask


def free_port() -> int:
    """A port that no program listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def user_without_rights() -> int:
    """The user whom servers run as: some refuse to run as root."""
    if os.geteuid():
        return os.geteuid()
    known = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
    return known.get("postgres", known.get("nobody", 65534))


def _surroundings(libraries: str, user: int | None) -> dict[str, Any]:
    environment = dict(os.environ) | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    settings: dict[str, Any] = {"env": environment, "cwd": "/"}
    if user is not None and os.geteuid() == 0:
        settings["env"] |= {"LC_ALL": "C", "HOME": "/nonexistent"}
        settings |= {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}
    return settings


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # A thread may end between the two looks.
            found += map(int, task.read_text().split())
    return found


def _kill_and_wait(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while _is_alive(pid):
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """False for a process that has ended, even if nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
