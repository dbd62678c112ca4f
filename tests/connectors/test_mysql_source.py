"""The MySQL source gives every change once, in the order of the log, with everything that the server logs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conduit_connectors import mysql as connector
from conduit_connectors.mysql.position import SourcePosition
from mariadb_changes import database_of, opened, replica_of, run_sql, run_transaction

from conduit_py.sdk import FatalError, Operation, Record
from conduit_py.testing import source_acceptance


@pytest.fixture(scope="module")
def shared_database(mariadb_server: Any) -> Iterator[str]:
    """One database for all rules of the acceptance suite."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


def changes_of_a_log(shared_database: str) -> Iterator[connector.Source]:
    run_sql(shared_database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    [[start]] = run_sql(shared_database, "SELECT @@gtid_binlog_pos")
    inserts = "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    run_transaction(shared_database, inserts, "UPDATE t SET id = 4 WHERE id = 3")
    run_sql(shared_database, "UPDATE t SET v = 'x' WHERE id = 1", "DELETE FROM t WHERE id = 2", "TRUNCATE t")
    yield connector.Source(
        url=shared_database, server_id=replica_of(shared_database), tables=["t"], snapshot="never", start=start
    )
    run_sql(shared_database, "DROP TABLE t")


def rows_of_a_table(shared_database: str) -> Iterator[connector.Source]:
    run_sql(shared_database, "CREATE TABLE t (a varchar(10), b int, v double, PRIMARY KEY (b, a))")
    run_sql(shared_database, "INSERT INTO t SELECT concat('k', seq % 3), seq, seq / 7 FROM seq_1_to_8")
    yield connector.Source(url=shared_database, server_id=replica_of(shared_database), tables=["t"], chunk_size=3)
    run_sql(shared_database, "DROP TABLE t")


TestChangesOfALog = source_acceptance(changes_of_a_log, records=8)
TestRowsOfATable = source_acceptance(rows_of_a_table, records=8)
