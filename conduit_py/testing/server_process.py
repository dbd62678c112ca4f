"""A server program on loopback, run by a user without rights, and the packages that such programs come in."""

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
import time
from collections.abc import Callable, Iterator, Sequence
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
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(how_to_end),
            **_surroundings(libraries, user),
        )
        deadline = time.monotonic() + START_SECONDS
        while not (self._listens() and (answers is None or answers())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} does not answer on port {self.port}: {self._log.read_text()[-4000:]}")
            time.sleep(0.05)

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
    with _locked(folder):
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
    with _locked(folder):
        unused = not any(_is_alive(int(user.name)) for user in (folder / "users").iterdir())
        if unused:
            (folder / "given").unlink()
        return unused


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def cached(name: str) -> Iterator[Path]:
    """A folder for what is fetched once. The caller fills it if it has no file `complete`; others wait until then."""
    # Servers of root run as a user who cannot enter root's home.
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) if os.geteuid() else Path("/var/cache")
    folder = home / "conduit-py" / name
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        yield folder
        (folder / "complete").touch()


def unpack(name: str, package: Callable[[], str] | None = None) -> Path:
    """Debian's package and what it needs, unpacked into a folder but not installed: no service is started.

    `package` finds which package it is, if not that of this name, once apt has its lists.
    """
    with cached(name) as folder:
        if not (folder / "complete").exists():
            _fetch_and_unpack(folder, package or (lambda: name))
    return folder


def _fetch_and_unpack(folder: Path, package: Callable[[], str]) -> None:
    if shutil.which("apt-get") is None:
        pytest.fail(f"a server is missing: install {folder.name} so that its programs are in the PATH")
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


def fetch_by_maven(name: str, artifact: str) -> Path:
    """A folder with `libs`: the artifact and what it needs, or what an archive such as `…:tar.gz:all` contains."""
    maven = shutil.which("mvn")
    with cached(name) as folder:
        if not (folder / "complete").exists():
            if maven is None:
                pytest.fail(f"{name} comes from Maven: install maven")
            group, artifact_id, version, *archive = artifact.split(":")
            (folder / "pom.xml").write_text(_POM.format(group=group, artifact=artifact_id, version=version))
            goal = ["dependency:copy", f"-Dartifact={artifact}"] if archive else ["dependency:copy-dependencies"]
            command = [maven, "-q", "-f", str(folder / "pom.xml"), *goal, f"-DoutputDirectory={folder / 'libs'}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"Maven cannot fetch {artifact}: {done.stdout[-2000:]}")
            if archive:
                subprocess.run("tar -xzf *.tar.gz && rm *.tar.gz", shell=True, cwd=folder / "libs", check=True)
    return folder


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>conduit-py</groupId><artifactId>for-tests</artifactId><version>1</version><dependencies><dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies>
</project>"""


def java_command() -> list[str]:
    """Java with a small heap, which spends no time on optimising."""
    java = shutil.which("java")
    if java is None:
        pytest.fail("this server runs on Java 17: install openjdk-17-jre-headless")
    return [java, "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def libraries_below(root: Path) -> str:
    """Where the libraries are that were unpacked with a program."""
    return ":".join(sorted({str(path.parent) for path in root.glob("**/*.so.*")}))


@cache
def postgres_programs() -> tuple[Path, str]:
    """The folder of the newest PostgreSQL of this machine, or of Debian's, and where its libraries are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent, ""
    initdb = shutil.which("initdb")
    if initdb:
        return Path(initdb).resolve().parent, ""
    root = unpack("postgresql", _postgres_package)
    [unpacked] = root.glob("usr/lib/postgresql/*/bin/initdb")
    return unpacked.parent, libraries_below(root)


def _postgres_package() -> str:
    """The package that the package of all versions stands for, such as postgresql-15."""
    shown = subprocess.run(["apt-cache", "depends", "postgresql"], check=True, capture_output=True, text=True)
    return next(line.split()[-1] for line in shown.stdout.splitlines() if "Depends: postgresql-" in line)


@cache
def mariadb_programs() -> tuple[Path, str]:
    """The folder that has `usr/sbin/mariadbd`, and where its libraries are."""
    if Path("/usr/sbin/mariadbd").exists():
        return Path("/"), ""
    root = unpack("mariadb-server")
    return root, libraries_below(root)


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Have the kernel stop a process when its parent has gone, killed or not."""
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
