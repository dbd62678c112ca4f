"""A pytest plugin: real servers for tests, found or fetched, started without rights on loopback.

Use it with `pytest_plugins = ["conduit_py.testing.services"]`. All workers of pytest-xdist share one server of a
kind, which starts with the first test that needs it: `postgres_server`, `mariadb_server`, `kafka_server`,
`registry_server`. The fixtures `postgres` and `mariadb` are the address of an empty database. `own_postgres`,
`own_kafka` and `own_registry` are servers of one test, which it may `kill()` and `start()` again.
A server that is missing and cannot be fetched fails the test: it is never skipped.
"""

import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest

from conduit_py.testing.server_packages import fetch_by_maven, java_command, mariadb_programs, postgres_programs
from conduit_py.testing.server_process import LoopbackService, free_port, share_service, stop_shared


class PostgresServer(LoopbackService):
    """PostgreSQL with `wal_level=logical`; `dsn(database)` is the address of a database, for its superuser.

    Replication slots and roles are of the server, not of a database: give them names that no other test uses.
    """

    name = "postgres"
    settings: ClassVar[Mapping[str, str]] = {
        # A test kills processes, never the machine.
        "fsync": "off",
        "full_page_writes": "off",
        "wal_level": "logical",
        "max_connections": "200",
        "max_prepared_transactions": "50",
        "max_replication_slots": "50",
        "max_wal_senders": "50",
        "shared_buffers": "32MB",
        "listen_addresses": "127.0.0.1",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "checkpoint_timeout": "1h",
    }

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """The address of a database that nobody has used yet. By file it costs half of what it does by the log."""
        name = f"test_{uuid.uuid4().int % 10**15}"
        with self._connect() as connection:
            strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""
            connection.execute(f"CREATE DATABASE {name} {strategy}")
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Remove it with its replication slots, even if somebody is still connected."""
        name = dsn.rpartition("/")[2]
        slots = f"FROM pg_replication_slots WHERE database = '{name}'"
        with self._connect() as connection:
            connection.execute(f"SELECT pg_terminate_backend(active_pid) {slots} AND active")
            # A slot is released shortly after its process has ended.
            for _ in range(100):
                with suppress(_driver().errors.ObjectInUse):
                    connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
                    break
                time.sleep(0.1)
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def create_user(self, name: str, password: str) -> None:
        """Create a user who has to give a password: all others of this server are trusted."""
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {name} all scram-sha-256\n{rules.read_text()}")
        with self._connect() as connection:
            connection.execute(f"CREATE USER {name} PASSWORD '{password}'")
            connection.execute("SELECT pg_reload_conf()")

    def initialise(self) -> None:
        programs, libraries = postgres_programs()
        command = [str(programs / "initdb"), "--no-sync", "--auth=trust", "--username=tester"]
        self._call([*command, "--encoding=UTF8", "--no-locale", f"--pgdata={self.folder / 'data'}"], libraries)

    def start(self) -> None:
        programs, libraries = postgres_programs()
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        options += [f"-cport={self.port}", f"-cunix_socket_directories={self.folder}"]
        command = [str(programs / "postgres"), "-D", str(self.folder / "data"), *options]
        self.run(command, libraries=libraries, answers=self._answers, user=self._user, how_to_end=signal.SIGQUIT)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT is at once, as in a crash; SIGINT first ends all connections in good order."""
        super().stop(how)

    def _connect(self, **options: Any) -> Any:
        return _driver().connect(self.dsn(), autocommit=True, **options)

    def _answers(self) -> bool:
        try:
            self._connect(connect_timeout=2).close()
        except _driver().OperationalError:
            return False
        return True


class MariaDbServer(LoopbackService):
    """MariaDB with a binary log of rows; `url(database)` is the address of a database, for a user with all rights."""

    name = "mariadb"

    def url(self, database: str = "mysql") -> str:
        return f"mysql://tester@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """The address of a database that nobody has used yet."""
        name = f"test_{uuid.uuid4().int % 10**15}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]}")

    def execute(self, statement: str, *, user: str = "tester") -> str:
        """Run a statement with the server's own client; return what it prints."""
        root, libraries = mariadb_programs()
        command = [str(root / "usr/bin/mariadb"), "--no-defaults", f"--socket={self.folder / 'socket'}"]
        return self._call([*command, f"--user={user}", "--batch", f"--execute={statement}"], libraries)

    def initialise(self) -> None:
        root, libraries = mariadb_programs()
        command = [str(root / "usr/bin/mariadb-install-db"), "--no-defaults", f"--basedir={root / 'usr'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        # A server that starts removes the temporary tables in this folder, whichever server has made them.
        self._call([*command, f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"], libraries)

    def start(self) -> None:
        root, libraries = mariadb_programs()
        command = [str(root / "usr/sbin/mariadbd"), "--no-defaults", f"--basedir={root / 'usr'}"]
        command += [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        command += [f"--socket={self.folder / 'socket'}"]
        command += [f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve", "--server-id=1"]
        command += ["--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--gtid-strict-mode=ON"]
        command += ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"]
        command += ["--character-set-server=utf8mb4", "--default-time-zone=+00:00", "--max-connections=200"]
        self.run(command, libraries=libraries, user=self._user)
        self.execute(
            "CREATE USER IF NOT EXISTS tester@'%'; GRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION", user="root"
        )


class KafkaServer(LoopbackService):
    """A Kafka broker, which is its own controller. Topics that a client asks for are created with one partition.

    Clients of `guarded_address` need TLS, with the authority `certificate`, and a user: one with SCRAM-SHA-512, or
    `plain_user` with PLAIN, who may do everything. Clients of `address` may create others. Use names of your own.
    """

    name = "kafka"
    plain_user = ("plain", "hush-hush-plain")

    @property
    def address(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def guarded_address(self) -> str:
        """`address` for clients with TLS and a password."""
        return (self.folder / "guarded").read_text()

    @property
    def certificate(self) -> Path:
        """Its certificate, which is its own authority, and its key."""
        return self.folder / "certificate.pem"

    def initialise(self) -> None:
        controller, guarded = free_port(), f"127.0.0.1:{free_port()}"
        listeners = f"PLAINTEXT://{self.address},SASL_SSL://{guarded}"
        settings = _KAFKA_SETTINGS | {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
            "ssl.keystore.location": str(self.certificate),
        }
        (self.folder / "guarded").write_text(guarded)
        to = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(self.certificate), "-out", str(self.certificate)]
        self._call(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", *to])
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._call([*self._java("kafka.tools.StorageTool"), "format", "-t", "conduit-py-tests-0000w", "-c", str(path)])

    def start(self) -> None:
        command = [*self._java("kafka.Kafka"), str(self.folder / "server.properties")]
        self.run(command, answers=self._answers, user=self._user)

    def _java(self, main: str) -> list[str]:
        folder = fetch_by_maven("kafka-4.3.1", "org.apache.kafka:kafka_2.13:4.3.1")
        return [*java_command(), "-cp", f"{folder / 'libs'}/*", main]

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=5).brokers)
        except KafkaException:
            return False


class RegistryServer(LoopbackService):
    """A schema registry, Apicurio, in memory. `url` is its API for clients of Confluent's.

    Schemas are of the server: give subjects names that no other test uses. Killed and started again, it is empty.
    """

    name = "registry"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        # The newest that runs on Java 17, as Kafka and Spark do.
        folder = fetch_by_maven("apicurio-3.0.9", "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all")
        options = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}", "-Dapicurio.storage.kind=sql"]
        options += ["-Dquarkus.http.access-log.enabled=false", f"-Djava.io.tmpdir={self.folder}"]
        command = [*java_command(), *options, "-jar", str(next((folder / "libs").glob("*-runner.jar")))]
        self.run(command, answers=self._answers, user=self._user)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/subjects", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False


_SASL, _LOGIN = "listener.name.sasl_ssl", "org.apache.kafka.common.security"
_KAFKA_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
    f"{_SASL}.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
    f"{_SASL}.plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_plain="hush-hush-plain";',
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
    "ssl.keystore.type": "PEM",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:plain",
    "offsets.topic.replication.factor": "1",
    # The default of 50 partitions costs seconds when the first transaction or group begins.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def pytest_unconfigure() -> None:
    stop_shared()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a run."""
    with share_service(PostgresServer, tmp_path_factory) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of the test's own: `kill()` it, then `start()` it again."""
    with PostgresServer.started() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """One MariaDB for all tests of a run."""
    with share_service(MariaDbServer, tmp_path_factory) as server:
        yield server


@pytest.fixture
def mariadb(mariadb_server: MariaDbServer) -> Iterator[str]:
    """The address of an empty database."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def own_mariadb() -> Iterator[MariaDbServer]:
    """A MariaDB of the test's own: `kill()` it, then `start()` it again."""
    with MariaDbServer.started() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka broker for all tests of a run."""
    with share_service(KafkaServer, tmp_path_factory) as server:
        yield server


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """A Kafka broker of the test's own: `kill()` it, then `start()` it again."""
    with KafkaServer.started() as server:
        yield server


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One schema registry for all tests of a run."""
    with share_service(RegistryServer, tmp_path_factory) as server:
        yield server


@pytest.fixture
def own_registry() -> Iterator[RegistryServer]:
    """A schema registry of the test's own: `kill()` it, then `start()` it again."""
    with RegistryServer.started() as server:
        yield server


def _driver() -> Any:
    """psycopg, imported on first use: a project may use this plugin for other servers."""
    import psycopg

    return psycopg
