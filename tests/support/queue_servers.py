"""Real servers of queues for tests: Redis, NATS with JetStream, and for SQS ElasticMQ and moto.

There is one of each per worker of pytest-xdist, but one ElasticMQ for all of them."""

import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
from botocore.exceptions import BotoCoreError, ClientError

from conduit_py.testing.server_packages import fetch_by_maven, java_command, libraries_below, unpack
from conduit_py.testing.server_process import LoopbackService, share_service


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


class ElasticMqServer(LoopbackService):
    """ElasticMQ, which speaks the protocol of SQS. What it has confirmed is there after `kill -9`, in a database.

    It takes requests before it has read its queues again, and says then that there are none: wait for `has_queue`.
    """

    name = "elasticmq"
    VERSION = "1.7.1"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def initialise(self) -> None:
        # Without the delay of H2 a commit is in the file when it is confirmed.
        database = f"jdbc:h2:{self.folder}/messages;WRITE_DELAY=0"
        (self.folder / "elasticmq.conf").write_text(
            f'node-address {{ host = "127.0.0.1", port = {self.port} }}\n'
            f'rest-sqs {{ bind-hostname = "127.0.0.1", bind-port = {self.port}, sqs-limits = strict }}\n'
            "rest-stats { enabled = false, bind-port = 1 }\n"
            f'messages-storage {{ enabled = true, uri = "{database}" }}\n'
            # It warns of the signature of each request, which it does not look at.
            "pekko { loglevel = ERROR, http.parsing.illegal-header-warnings = off }\n"
        )

    def start(self) -> None:
        libraries = fetch_by_maven(f"elasticmq-{self.VERSION}", f"org.elasticmq:elasticmq-server_2.13:{self.VERSION}")
        command = [*java_command(), f"-Dconfig.file={self.folder / 'elasticmq.conf'}", "-cp", f"{libraries / 'libs'}/*"]
        self.run([*command, "org.elasticmq.server.Main"], answers=self._answers, user=self._user)

    def client(self) -> Any:
        """A client, which its user closes."""
        return sqs_client(self.url)

    def has_queue(self, name: str) -> bool:
        with closing(self.client()) as client:
            return any(url.endswith(f"/{name}") for url in client.list_queues().get("QueueUrls", []))

    def _answers(self) -> bool:
        with suppress(BotoCoreError, ClientError), closing(self.client()) as client:
            client.list_queues()
            return True
        return False


def sqs_client(endpoint: str) -> Any:
    return boto3.session.Session().client(
        "sqs",
        endpoint_url=endpoint,
        region_name="eu-west-1",
        aws_access_key_id="tester",
        aws_secret_access_key="not-a-secret",
    )


class MotoServer(LoopbackService):
    """Moto's server, which answers as Amazon does: SQS, S3 and others. Killed and started again, it is empty."""

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
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an ElasticMQ, for all tests of a run."""
    with share_service(ElasticMqServer, tmp_path_factory) as server:
        yield server.url


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
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
