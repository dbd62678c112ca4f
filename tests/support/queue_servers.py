"""Real servers of queues for tests, one of each per worker of pytest-xdist: Redis, NATS with JetStream, SQS by moto."""

import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from conduit_py.testing.server_packages import libraries_below, unpack
from conduit_py.testing.server_process import LoopbackService


class RedisServer(LoopbackService):
    """Redis with an append-only file: what it has confirmed is there after `kill -9`."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        program, needed = shutil.which("redis-server"), ""
        if program is None:
            root = unpack("redis-server")
            # In Debian's package it is a link to a program of another one, and what it does depends on its name.
            found, needed = (root / "usr/bin/redis-server").resolve(), libraries_below(root)
            link = self.folder / "redis-server"
            if not link.is_symlink():
                link.symlink_to(found)
            program = str(link)
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "no"]
        self.run(command, libraries=needed, answers=self._answers, user=self._user)

    def _answers(self) -> bool:
        with suppress(redis.RedisError):
            # Not while it loads its file.
            return bool(redis.Redis.from_url(self.url).ping())
        return False


class NatsServer(LoopbackService):
    """NATS with JetStream, which keeps streams on the disk."""

    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        address = ["-a", "127.0.0.1", "-p", str(self.port)]
        self.run([beside_python("nats-server"), "-js", *address, "-sd", str(self.folder / "data")])


class MotoServer(LoopbackService):
    """Moto's server, which answers as SQS and as S3 do. Killed and started again, it is empty."""

    name = "moto"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.run([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)])


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The address of a Redis."""
    with RedisServer.started() as server:
        yield server.url


@pytest.fixture(scope="session")
def nats_server() -> Iterator[str]:
    """The address of a NATS server with JetStream."""
    with NatsServer.started() as server:
        yield server.url


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[str]:
    """The address of moto's server."""
    with MotoServer.started() as server:
        yield server.url


@pytest.fixture
def queue_name() -> str:
    """A name that no other test uses on a server that they share."""
    return f"queue-{uuid.uuid4().hex[:12]}"


def beside_python(name: str) -> str:
    """A program that a package of the virtual environment brought along, else one of the machine."""
    found = Path(sys.executable).with_name(name)
    program = str(found) if found.exists() else shutil.which(name)
    assert program is not None, f"{name} is needed: run make test, which installs it"
    return program
