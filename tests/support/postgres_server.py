"""A real PostgreSQL for tests: a server on loopback, run by a user without rights, with a database for each test.

`postgres_server` is the server, started when the first test of a worker asks for it; `postgres` is the address of
an empty database of its own for one test.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from loopback import end_with_parent, free_port, libraries, unpacked

SETTINGS = {
    # A test kills clients, never the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_connections": "200",
    "max_prepared_transactions": "50",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "checkpoint_timeout": "1h",
}


class PostgresServer:
    """A running server; `dsn(database)` is the address of one of its databases, for its superuser."""

    def __init__(self, programs: Path, folder: Path, user: int) -> None:
        self.port = free_port()
        self._programs = programs
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """The address of a database that nobody has used yet."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def create_user(self, name: str, password: str) -> None:
        """Create a user who has to give a password: all others of this server are trusted."""
        rules = self._folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {name} all scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE USER {name} PASSWORD '{password}'")
            connection.execute("SELECT pg_reload_conf()")

    def drop_database(self, dsn: str) -> None:
        """Remove it, whoever is still connected."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {dsn.rpartition('/')[2]} WITH (FORCE)")

    def initialise(self) -> None:
        command = [str(self._programs / "initdb"), "--no-sync", "--auth=trust", "--username=tester"]
        command += ["--encoding=UTF8", "--no-locale", f"--pgdata={self._folder / 'data'}"]
        done = subprocess.run(command, capture_output=True, timeout=300, **self._as_user())  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the server and wait until it answers. It ends with this process, however that ends."""
        options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        options += [f"-cport={self.port}", f"-cunix_socket_directories={self._folder}"]
        self._process = subprocess.Popen(  # type: ignore[call-overload]
            [str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options],
            stdout=(self._folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(signal.SIGQUIT),
            **self._as_user(),
        )
        deadline = time.monotonic() + 300
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT is at once, as in a crash; SIGINT first ends all connections in good order."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(300)
            self._process = None

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _as_user(self) -> dict[str, object]:
        """PostgreSQL refuses to run as root."""
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_LIBRARY_PATH": _libraries(self._programs)}
        settings: dict[str, object] = {"env": environment, "cwd": "/"}
        if os.geteuid() == 0:
            settings |= {"user": self._user, "group": pwd.getpwuid(self._user).pw_gid, "extra_groups": []}
        return settings


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """One server for each worker of pytest-xdist that needs it."""
    programs = _installed() or _unpacked(request.config)
    user = _unprivileged()
    # Not pytest's own folder: other users may not enter that one.
    folder = Path(tempfile.mkdtemp(prefix="conduit-postgres-"))
    if os.geteuid() == 0:
        os.chown(folder, user, pwd.getpwuid(user).pw_gid)
    server = PostgresServer(programs, folder, user)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


def _installed() -> Path | None:
    """The folder of the newest PostgreSQL of this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _unpacked(config: pytest.Config) -> Path:
    [initdb] = unpacked(config, "postgresql", _server_package).glob("usr/lib/postgresql/*/bin/initdb")
    return initdb.parent


def _server_package() -> str:
    """The package that the package of all versions stands for, such as postgresql-15."""
    shown = subprocess.run(["apt-cache", "depends", "postgresql"], check=True, capture_output=True, text=True)
    return next(line.split()[-1] for line in shown.stdout.splitlines() if "Depends: postgresql-" in line)


def _libraries(programs: Path) -> str:
    """Where what the programs need was unpacked; nothing when they are installed."""
    root = programs.parents[4]
    return "" if root == Path("/") else libraries(root)


def _unprivileged() -> int:
    if os.geteuid():
        return os.geteuid()
    known = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
    return known.get("postgres", known.get("nobody", 65534))
