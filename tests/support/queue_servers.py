"""Real servers of queues for tests, one of each per worker of pytest-xdist: Redis, NATS with JetStream, SQS by moto."""

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_py.testing.server_process import ServerProcess, libraries_below, unpack


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis that keeps nothing on the disk."""
    program, needed = shutil.which("redis-server"), ""
    if program is None:
        root = unpack("redis-server")
        # In Debian's package it is a link to a program of another one.
        program, needed = str((root / "usr/bin/redis-server").resolve()), libraries_below(root)
        program = str(_named(Path(program), "redis-server", tmp_path_factory.mktemp("redis-program")))
    folder = tmp_path_factory.mktemp("redis")
    server = ServerProcess(folder / "log")
    server.run(
        [program, "--port", str(server.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        libraries=needed,
    )
    yield f"redis://127.0.0.1:{server.port}/0"
    server.stop()


def _named(program: Path, name: str, folder: Path) -> Path:
    """The program under a name: what it does depends on it."""
    link = folder / name
    link.symlink_to(program)
    return link


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a NATS server with JetStream."""
    folder = tmp_path_factory.mktemp("nats")
    server = ServerProcess(folder / "log")
    server.run(
        [beside_python("nats-server"), "-js", "-a", "127.0.0.1", "-p", str(server.port), "-sd", str(folder / "data")]
    )
    yield f"nats://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(scope="session")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto's server, which answers as SQS and as S3 do."""
    server = ServerProcess(tmp_path_factory.mktemp("moto") / "log")
    server.run([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server.port)])
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
def queue_name() -> str:
    """A name that no other test uses on a server that they share."""
    return f"queue-{uuid.uuid4().hex[:12]}"


def beside_python(name: str) -> str:
    """A program that a package of the virtual environment brought along, else one of the machine."""
    found = Path(sys.executable).with_name(name)
    program = str(found) if found.exists() else shutil.which(name)
    assert program is not None, f"{name} is needed: install conduit-dataflow[dev]"
    return program
