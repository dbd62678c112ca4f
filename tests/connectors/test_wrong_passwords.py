"""A wrong password is an error that ends a pipeline, names the option and not the password, and is not tried again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conduit_connectors import memory, nats, postgres
from conduit_connectors.delta import table as delta_table
from queue_servers import beside_python

import conduit_py
from conduit_py import Destination, Pipeline, Source, sdk
from conduit_py.errors import FatalError
from conduit_py.status import Status
from conduit_py.testing.server_process import ServerProcess
from conduit_py.testing.services import PostgresServer

PASSWORD = "hush-hush-4711"


def end_of(source: sdk.SourceConnector[sdk.Options], destination: sdk.DestinationConnector[sdk.Options]) -> FatalError:
    """Run a pipeline that must fail at once; return its error."""
    pipeline = Pipeline("p", sources=[Source("in", source)], destinations=[Destination("out", destination)])
    outcome = conduit_py.run(pipeline)
    assert outcome.status is Status.DEGRADED
    assert isinstance(outcome.error, FatalError), outcome.error
    assert PASSWORD not in f"{outcome.error} {outcome.error.suggestion}"
    return outcome.error


@pytest.mark.parametrize("user", [f"guarded:{PASSWORD}", "guarded", f"nobody:{PASSWORD}"])
def test_postgres(postgres_server: PostgresServer, postgres: str, user: str) -> None:
    if user == f"guarded:{PASSWORD}":
        postgres_server.create_user("guarded", "another")
    url = postgres.replace("tester@", f"{user}@")
    written = end_of(memory.Source(records=[{"n": 1}]), postgres_destination(url))
    read = end_of(postgres_source(url), memory.Destination(into=[]))

    for error in (written, read):
        assert error.message.startswith("PostgreSQL refuses the user: ")
        assert str(error.suggestion).startswith("check the user and the password in `url`")


def postgres_source(url: str) -> sdk.SourceConnector[sdk.Options]:
    return postgres.Source(url=url, slot="guarded", tables=["t"])


def postgres_destination(url: str) -> sdk.DestinationConnector[sdk.Options]:
    return postgres.Destination(url=url, table="t")


@pytest.fixture
def guarded_nats(tmp_path: Path) -> Iterator[str]:
    server = ServerProcess(tmp_path / "log")
    address = ["-a", "127.0.0.1", "-p", str(server.port), "-sd", str(tmp_path / "data")]
    server.run([beside_python("nats-server"), "-js", *address, "--user", "me", "--pass", "another"])
    yield f"127.0.0.1:{server.port}"
    server.stop()


@pytest.mark.parametrize("user", [f"me:{PASSWORD}@", ""])
def test_nats(guarded_nats: str, user: str) -> None:
    source = nats.Source(url=f"nats://{user}{guarded_nats}", stream="s", subject="t")
    error = end_of(source, memory.Destination(into=[]))

    assert error.message == f"NATS at {guarded_nats} refuses the user: nats: 'Authorization Violation'"
    assert error.suggestion == "check the user and the password in `url`, or `credentials`"


def test_delta_tells_wrong_keys_from_a_store_that_is_away() -> None:
    # As deltalake words them: a store that checks keys is not part of the tests.
    denied = "Generic S3 error: status 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code></Error>"
    with pytest.raises(FatalError, match="refuses us"), delta_table.table_errors("s3://bucket/t"):
        raise OSError(denied)
    with pytest.raises(sdk.TransientError), delta_table.table_errors("s3://bucket/t"):
        raise OSError("Generic S3 error: error sending request: connection refused")


class JavaError(Exception):
    """An error of a database as Spark hands it over."""

    def __init__(self, state: str) -> None:
        super().__init__("java.sql.SQLException")
        self.java_exception, self._sql_state = self, state

    def getMessage(self) -> str:  # noqa: N802
        return 'FATAL: password authentication failed for user "me"'

    def getCause(self) -> None:  # noqa: N802
        return None

    def getClass(self) -> "JavaError":  # noqa: N802
        return self

    def getName(self) -> str:  # noqa: N802
        return "org.postgresql.util.PSQLException"

    def getSQLState(self) -> str:  # noqa: N802
        return self._sql_state


def test_databases_of_spark_by_their_sql_state() -> None:
    errors = pytest.importorskip("conduit_py.spark.session.errors")
    with pytest.raises(FatalError, match="the write failed: FATAL: password"), errors.spark_errors("the write"):
        raise JavaError("28P01")
    with pytest.raises(sdk.TransientError), errors.spark_errors("the write"):
        raise JavaError("08006")
