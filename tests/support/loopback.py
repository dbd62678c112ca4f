"""A server program on loopback: started on a free port, stopped at the end, and gone when its parent is killed."""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


class Loopback:
    """A process that listens on `port`."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], *, libraries: str = "", answers: Callable[[], bool] | None = None) -> None:
        """Run the program and wait until it takes connections, and until it answers if there is a way to tell."""
        environment = dict(os.environ)
        if libraries:
            environment["LD_LIBRARY_PATH"] = libraries
        self._process = subprocess.Popen(
            list(command),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(),
        )
        deadline = time.monotonic() + 300
        while not (self._listens() and (answers is None or answers())):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, f"{command[0]} does not answer: {self._log.read_text()}"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(300)
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def beside_python(name: str) -> str:
    """A program that a package of the virtual environment brought along, else one of the machine."""
    found = Path(sys.executable).with_name(name)
    program = str(found) if found.exists() else shutil.which(name)
    assert program is not None, f"{name} is needed: install conduit-dataflow[dev]"
    return program


def unpacked(config: pytest.Config, name: str, package: Callable[[], str] | None = None) -> Path:
    """Debian's package and what it needs, unpacked into a folder but not installed: no service is started.

    `package` finds out which one it is, if not that of this name, once apt knows what there is.
    """
    assert config.cache is not None
    folder = Path(config.cache.mkdir(f"{name}-unpacked"))
    with (folder / "lock").open("w") as lock:
        # Several workers of pytest-xdist share the folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            unpack(folder, package or (lambda: name))
            (folder / "complete").touch()
    return folder


def unpack(folder: Path, package: Callable[[], str]) -> None:
    """Have apt fetch a package and those of its dependencies that are not installed, and unpack them all."""
    if shutil.which("apt-get") is None:
        pytest.fail(f"the server for {folder} is needed: install it so that its programs are in the PATH")
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=100)
    command = ["apt-get", "install", "--download-only", "--no-install-recommends", "-qy", "-oDebug::NoLocking=1"]
    command += [f"-oDir::Cache::archives={archives}", package()]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder)], check=True, timeout=300)
    shutil.rmtree(archives)


def libraries(root: Path) -> str:
    """Where the libraries are that were unpacked with a program."""
    return ":".join(sorted({str(path.parent) for path in root.glob("**/*.so.*")}))


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Have the kernel stop a process when its parent has gone, killed or not."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(1, int(how), 0, 0, 0)

    return ask


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
