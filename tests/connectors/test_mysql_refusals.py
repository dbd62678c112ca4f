"""What the MySQL source cannot read it refuses, with what to do. It never skips."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
from conduit_connectors import mysql as connector
from mariadb_changes import database_of, open_reader, replica_of, run_sql, run_transaction
from postgres_changes import PATIENCE_SECONDS

from conduit_py.sdk import FatalError, Operation, TransientError
from conduit_py.testing.services import MariaDbServer


class OwnServer(MariaDbServer):
    """A server with settings that other tests do not share. It is started again with `more` options."""

    more: Sequence[str] = ()

    def run(self, command: Sequence[str], **how: Any) -> None:
        super().run([*command, *self.more], **how)

    def restart(self, *more: str) -> None:
        self.more = more
        self.kill()
        self.start()


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnServer]:
    with OwnServer.started() as server:
        yield server


@pytest.fixture
def own(own_server: OwnServer) -> Iterator[str]:
    """The address of an empty database of the own server."""
    url = own_server.create_database()
    run_sql(url, "CREATE TABLE t (id int PRIMARY KEY)")
    yield url
    own_server.drop_database(url)


def source_of(url: str, **options: Any) -> connector.Source:
    return connector.Source(url=url, server_id=replica_of(url), **{"tables": ["t"], "snapshot": "never"} | options)


async def refusal_of(source: connector.Source, position: bytes | None = None) -> FatalError:
    """Open and read until it is refused."""
    with pytest.raises(FatalError) as refused:
        async with open_reader(source, position) as reader:
            await reader.take(1)
    assert refused.value.suggestion
    return refused.value


def purge(url: str) -> None:
    """Delete all files of the log but the last. The server keeps a file until it notices that its reader is gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(files := run_sql(url, "SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline
        run_sql(url, f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("binlog_format", "MIXED"), ("binlog_row_image", "MINIMAL"), ("binlog_row_metadata", "NO_LOG")],
)
async def test_a_server_that_does_not_log_all_of_a_row(own: str, setting: str, value: str) -> None:
    [[before]] = run_sql(own, f"SELECT @@global.{setting}")
    run_sql(own, f"SET GLOBAL {setting} = {value}")

    refused = await refusal_of(source_of(own))
    run_sql(own, f"SET GLOBAL {setting} = {before}")

    assert f"the server has {setting} = {value}" in refused.message
    assert f"SET GLOBAL {setting}" in str(refused.suggestion)


async def test_rows_that_were_logged_without_the_names_of_their_columns(own: str) -> None:
    async with open_reader(source_of(own)) as reader:
        start = reader.source.start_position()
    run_sql(own, "SET GLOBAL binlog_row_metadata = MINIMAL", "INSERT INTO t VALUES (1)")
    run_sql(own, "SET GLOBAL binlog_row_metadata = FULL")

    refused = await refusal_of(source_of(own), start)

    assert "without the names of their columns" in refused.message
    assert "binlog_row_metadata = FULL" in str(refused.suggestion)


async def test_a_server_without_a_log_and_one_that_came_back(own_server: OwnServer, own: str) -> None:
    run_sql(own, "INSERT INTO t VALUES (1)")
    async with open_reader(source_of(own)) as reader:
        start = reader.source.start_position()
    own_server.restart("--skip-log-bin")

    refused = await refusal_of(source_of(own), start)
    own_server.restart()
    async with open_reader(source_of(own), start) as reader:
        run_sql(own, "INSERT INTO t VALUES (2)")
        [record] = await reader.take(1)

    assert "log_bin = OFF" in refused.message
    assert "--log-bin" in str(refused.suggestion)
    assert record.key == {"id": 2}


async def test_a_position_that_the_server_has_purged(own: str) -> None:
    async with open_reader(source_of(own)) as reader:
        start = reader.source.start_position()
    run_sql(own, "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    purge(own)

    refused = await refusal_of(source_of(own), start)

    assert "does not have the changes after the position any more" in refused.message
    assert "read everything again" in str(refused.suggestion)


async def test_a_position_at_the_end_of_a_log_that_was_purged_since_goes_on(own: str) -> None:
    run_sql(own, "INSERT INTO t VALUES (1)")
    async with open_reader(source_of(own)) as reader:
        start = reader.source.start_position()
    run_sql(own, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    purge(own)

    async with open_reader(source_of(own, snapshot="initial", tables=["t"]), start) as reader:
        run_sql(own, "INSERT INTO t VALUES (2)")
        [record] = await reader.take(1)

    assert (record.operation, record.key) == (Operation.CREATE, {"id": 2})


async def test_another_server_unless_it_has_the_same_log(mariadb: str, own: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", *["INSERT INTO t VALUES (1)", "DELETE FROM t"] * 30)
    async with open_reader(source_of(mariadb)) as reader:
        elsewhere = reader.source.start_position()

    refused = await refusal_of(source_of(own), elsewhere)
    followed = await refusal_of(source_of(own, other_server="follow"), elsewhere.replace(b"0-1-", b"0-1-9999"))

    assert "the position is of the server 1/" in refused.message
    assert "other_server" in str(refused.suggestion)
    assert "does not have the transaction of the position" in followed.message


async def test_a_server_that_was_restored_from_an_older_copy(own: str) -> None:
    run_sql(own, "INSERT INTO t VALUES (1)")
    async with open_reader(source_of(own)) as reader:
        run_sql(own, "INSERT INTO t VALUES (2)")
        [record] = await reader.take(1)

    refused = await refusal_of(source_of(own), record.position.replace(b'"gtids":"0-1-', b'"gtids":"0-1-99'))

    assert "does not have the transaction of the position" in refused.message


async def test_a_position_inside_of_a_transaction_that_is_another_one_now(own: str) -> None:
    async with open_reader(source_of(own)) as reader:
        run_transaction(own, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        [first, _] = await reader.take(2)
    wrong = first.position.replace(b'"transaction":"0-1-', b'"transaction":"0-1-99')

    refused = await refusal_of(source_of(own), wrong)

    assert "the position is inside of 0-1-99" in refused.message


async def test_a_user_without_the_right_to_replicate_and_one_without_a_right_to_the_table(own: str) -> None:
    name = database_of(own)
    run_sql(own, "CREATE USER poor IDENTIFIED BY 'geheim'", f"GRANT SELECT ON {name}.t TO poor")
    url = own.replace("tester@", "poor:geheim@")

    replicate = await refusal_of(source_of(url))
    run_sql(own, "GRANT REPLICATION SLAVE ON *.* TO poor", f"REVOKE SELECT ON {name}.t FROM poor")
    run_sql(own, f"CREATE TABLE {name}.other (id int)", f"GRANT SELECT ON {name}.other TO poor")
    table = await refusal_of(source_of(url))
    run_sql(own, "DROP USER poor")

    assert "GRANT REPLICATION SLAVE" in str(replicate.suggestion)
    assert f"there is no table {name}.t, or the user has no right to it" in table.message


@pytest.mark.parametrize(
    ("password", "reason"),
    [("not-geheim", "refuses the user"), ("pa/ss@word", "no address"), ("", "refuses the user")],
)
async def test_a_wrong_password_which_no_error_quotes(own: str, password: str, reason: str) -> None:
    run_sql(own, "CREATE OR REPLACE USER guarded IDENTIFIED BY 'geheim'")

    url = own.replace("tester@", f"guarded:{password}@")
    refused = await refusal_of(connector.Source(url=url, server_id=1))

    assert reason in refused.message
    assert not password or password not in f"{refused.message} {refused.suggestion} {refused.__cause__}"


async def test_a_rotated_password_ends_no_connection_and_loses_no_change(own: str) -> None:
    rights = f"GRANT SELECT ON {database_of(own)}.* TO turned", "GRANT REPLICATION SLAVE ON *.* TO turned"
    run_sql(own, "CREATE USER turned IDENTIFIED BY 'first'", *rights)
    old, new = (source_of(own.replace("tester@", f"turned:{password}@")) for password in ("first", "second"))

    async with open_reader(old) as reader:
        run_sql(own, "INSERT INTO t VALUES (1)")
        [first] = await reader.take(1)
        run_sql(own, "ALTER USER turned IDENTIFIED BY 'second'", "INSERT INTO t VALUES (2)")
        [second] = await reader.take(1)
    refused = await refusal_of(old, first.position)
    async with open_reader(new, first.position) as reader:
        [again] = await reader.take(1)
    run_sql(own, "DROP USER turned")

    assert "refuses the user" in refused.message
    assert [record.key for record in (first, second, again)] == [{"id": 1}, {"id": 2}, {"id": 2}]


async def test_a_server_that_is_not_there_is_transient() -> None:
    with pytest.raises(TransientError, match="cannot connect to MariaDB"):
        async with open_reader(connector.Source(url="mysql://x:geheim@127.0.0.1:1/y", server_id=1)):
            pass


async def test_a_second_source_with_the_same_number_ends_the_first(own: str) -> None:
    async with open_reader(source_of(own)) as first, open_reader(source_of(own)) as second:
        run_sql(own, "INSERT INTO t VALUES (1)")
        [record] = await second.take(1)
        with pytest.raises(FatalError, match="another replica has the same number") as refused:
            await first.take(2)

    assert record.key == {"id": 1}
    assert "server_id" in str(refused.value.suggestion)


@pytest.mark.parametrize(
    ("statements", "reason", "advice"),
    [
        (["SET binlog_format = STATEMENT", "INSERT INTO t VALUES (1)"], "in place of the rows", "binlog_format"),
        (["XA START 'a'", "INSERT INTO t VALUES (1)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'"], "XA", "XA"),
        (["RENAME TABLE t TO u"], "changes the rows of", "unlogged_changes"),
        (["ALTER TABLE t RENAME TO u"], "changes the rows of", "unlogged_changes"),
        (["CREATE TABLE u LIKE t", "DROP TABLE t", "RENAME TABLE u TO t"], "changes the rows of", ""),
        (
            ["ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2", "ALTER TABLE t TRUNCATE PARTITION p0"],
            "changes the rows of",
            "unlogged_changes",
        ),
        (["ALTER TABLE t ADD SYSTEM VERSIONING"], "changes the rows of", ""),
    ],
)
async def test_changes_that_the_log_does_not_have_as_rows(
    own: str, statements: list[str], reason: str, advice: str
) -> None:
    async with open_reader(source_of(own)) as reader:
        run_sql(own, *statements)
        with pytest.raises(FatalError, match=reason) as refused:
            await reader.take(2)

    assert advice in str(refused.value.suggestion)


async def test_unlogged_changes_are_ignored_on_request_and_tables_may_be_swapped(own: str) -> None:
    run_sql(own, "ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE u LIKE t")
    async with open_reader(source_of(own, unlogged_changes="ignore")) as reader:
        run_sql(own, "ALTER TABLE t TRUNCATE PARTITION p0", "INSERT INTO t VALUES (1)")
        ignored = await reader.take(1)
    async with open_reader(source_of(own), ignored[-1].position) as reader:
        run_sql(own, "RENAME TABLE t TO old, u TO t", "INSERT INTO old VALUES (2)", "INSERT INTO t VALUES (3)")
        swapped = await reader.take(1)

    assert [record.key for record in ignored + swapped] == [{"id": 1}, {"id": 3}]


async def test_a_system_versioned_table(own: str) -> None:
    run_sql(own, "CREATE TABLE v (id int PRIMARY KEY) WITH SYSTEM VERSIONING")

    assert "system-versioned" in (await refusal_of(source_of(own, tables=["v"]))).message


async def test_a_position_of_another_source(own: str) -> None:
    assert "not a position of this source" in (await refusal_of(source_of(own), b'{"lsn": "0/1"}')).message


async def test_the_position_moves_on_if_only_other_tables_change_and_a_restart_accepts_it(own: str) -> None:
    run_sql(own, "CREATE TABLE other (id int PRIMARY KEY)")
    source = source_of(own, heartbeat_seconds=0.05)
    async with open_reader(source) as reader:
        start = reader.source.start_position()
        run_sql(own, "INSERT INTO other VALUES (1)")
        progress = await reader.progress_after(start)
        with trio.move_on_after(0.3):
            # Nothing new, no progress.
            assert (await reader.source.read(1)).records
    async with open_reader(source, progress) as reader:
        run_sql(own, "INSERT INTO t VALUES (1)")
        [record] = await reader.take(1)

    assert progress != start
    assert record.key == {"id": 1}


async def test_lag_is_what_the_log_has_after_the_stream(own: str) -> None:
    async with open_reader(source_of(own)) as reader:
        run_sql(own, "INSERT INTO t VALUES (1)")
        await reader.take(1)
        before = await reader.source.lag()
        run_sql(own, "INSERT INTO t SELECT seq FROM seq_2_to_1000", "FLUSH BINARY LOGS")
        after = await reader.source.lag()

    assert (before.bytes, after.bytes > 4000) == (0, True)
