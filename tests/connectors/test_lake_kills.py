"""Lakes, DuckDB and SQLAlchemy, killed at named moments: what was read is there once, and nothing is left behind."""

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lake_tables import LAKE_MODULES, iceberg_rows, iceberg_table
from sql_world import duckdb_world
from warm_python import run_warm

CHILD = Path(__file__).with_name("lake_child.py")
HOME = ["transaction.before_commit:2", "transaction.after_home_commit:1"]
STAGED = ["transaction.before_commit:2", "transaction.after_commit:1"]


def run_child(folder: Path, kind: str, **variables: str) -> int:
    command = [sys.executable, str(CHILD), str(folder), kind]
    ran = run_warm(command, env=os.environ | variables, preloaded=LAKE_MODULES)
    print(ran.stdout, ran.stderr)
    return ran.returncode


def killed(folder: Path, kind: str, points: list[str]) -> None:
    """Run the child, killed at each of these moments and then not any more."""
    for point in points:
        name = "KILL_IN_COMMIT" if point.isdigit() else "CONDUIT_KILL_AT"
        assert run_child(folder, kind, **{name: point}) == -signal.SIGKILL, point
    assert run_child(folder, kind) == 0


ONCE = [(n, n) for n in range(40)]


def test_i6_rows_of_duckdb_are_there_once(tmp_path: Path) -> None:
    killed(tmp_path, "duckdb", HOME)

    assert duckdb_world(tmp_path / "data.duckdb").read("SELECT n, v FROM t ORDER BY rowid") == ONCE


def test_i6_rows_behind_sqlalchemy_are_there_once(tmp_path: Path) -> None:
    killed(tmp_path, "sqlalchemy", HOME[:1])

    with closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        assert connection.execute("SELECT n, v FROM t ORDER BY rowid").fetchall() == ONCE


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("iceberg", ONCE), ("iceberg-upsert", [(n, n + 20) for n in range(20)])],
)
def test_i4_i8_rows_of_iceberg_are_there_once_and_no_files_are_left(
    tmp_path: Path, kind: str, expected: list[Any]
) -> None:
    killed(tmp_path, kind, [*STAGED, "2"])

    assert [(row["n"], row["v"]) for row in iceberg_rows(tmp_path)] == expected
    assert {str(path) for path in tmp_path.glob("lake/**/*.parquet")} == named_files(tmp_path)


def named_files(folder: Path) -> set[str]:
    """The data files that some snapshot of the table names."""
    table = iceberg_table(folder)
    return {
        urlsplit(entry.data_file.file_path).path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
