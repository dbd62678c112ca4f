"""Iceberg tables of a real catalog behind REST: written once, while others commit too and processes are killed."""

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors import iceberg
from lake_tables import LAKE_MODULES, read_until_end
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.concurrent import ExecutorFactory
from warm_python import run_warm

from conduit_py.errors import FatalError, Fenced, TransientError
from conduit_py.sdk import Record
from conduit_py.testing import destination_acceptance, source_acceptance

CHILD = Path(__file__).with_name("lake_child.py")
COLUMNS = {"n": "long", "from": "string"}


def rows(catalog: dict[str, str], table: str) -> list[dict[str, Any]]:
    opened_catalog = load_catalog("t", **catalog)
    if not opened_catalog.table_exists(table):
        return []
    found: list[dict[str, Any]] = opened_catalog.load_table(table).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: int(row["n"]))


@pytest.fixture
def table() -> str:
    # All threads that the library shares in a process, or they would be taken for those of a connector.
    list(ExecutorFactory.get_or_create().map(time.sleep, [0.01] * 64))
    return f"db.t{secrets.token_hex(4)}"


def opened(catalog: dict[str, str], table: str, **options: Any) -> iceberg.Destination:
    made = iceberg.Destination(table=table, catalog=catalog, **options)
    assert made.problems == []
    destination = made.fresh()
    destination.open()
    return destination


def a_table(rest_catalog: dict[str, str], table: str) -> tuple[iceberg.Destination, Callable[[], list[Any]]]:
    made = iceberg.Destination(table=table, catalog=rest_catalog, columns=COLUMNS)
    return made, lambda: rows(rest_catalog, table)


TestRestCatalog = destination_acceptance(a_table, refused=Record.of({"n": 1.5}))


def a_filled_table(rest_catalog: dict[str, str], table: str) -> iceberg.Source:
    destination = opened(rest_catalog, table, columns=COLUMNS)
    for n in range(0, 12, 4):
        destination.write(batch_of(*({"n": n + each} for each in range(4))))
        destination.flush()
    return iceberg.Source(table=table, catalog=rest_catalog)


TestRestSource = source_acceptance(a_filled_table)


def test_a_transaction_is_there_once_although_others_commit(rest_catalog: dict[str, str], table: str) -> None:
    destination = opened(rest_catalog, table, columns=COLUMNS, on_new_field="add")
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 1, "from": "a", "more": 1.5}))
    intent = destination.stage()
    assert intent is not None
    load_catalog("t", **rest_catalog).load_table(table).append(pa.table({"n": [2]}))
    destination.apply(intent)
    destination.apply(intent)
    opened(rest_catalog, table).begin("p", 2, [intent])

    found = rows(rest_catalog, table)
    assert [(row["n"], row["more"]) for row in found] == [(1, 1.5), (2, None)]
    newest = opened(rest_catalog, table)
    newest.begin("p", 3, [])
    newest.write(batch_of({"n": 3}))
    newest.apply(newest.stage() or b"")
    replaced = opened(rest_catalog, table)
    with pytest.raises(Fenced):
        replaced.begin("p", 2, [])


def test_upserts_and_the_source_see_the_same_table(rest_catalog: dict[str, str], table: str) -> None:
    destination = opened(rest_catalog, table, columns=COLUMNS, mode="upsert", key=["n"])
    for text in ("a", "b"):
        destination.write(batch_of({"n": 1, "from": text}, {"n": 2, "from": text}))
        destination.flush()

    assert rows(rest_catalog, table) == [{"n": 1, "from": "b"}, {"n": 2, "from": "b"}]
    read = read_until_end(iceberg.Source(table=table, catalog=rest_catalog))
    assert sorted(str(record.payload.after) for record in read) == [str(row) for row in rows(rest_catalog, table)]


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"credential": "tester:wrong-" + "x" * 20}, FatalError, "refuses us"),
        ({"uri": "http://127.0.0.1:1"}, TransientError, "catalog"),
        ({"warehouse": "s3://nowhere"}, FatalError, "there is no Iceberg table"),
    ],
)
def test_what_is_wrong_with_a_catalog_is_reported(
    rest_catalog: dict[str, str], change: dict[str, str], error: type[FatalError | TransientError], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        opened(rest_catalog | change, "db.missing")

    assert "x" * 20 not in str(caught.value)


def test_i4_i8_a_process_that_is_killed_writes_each_row_once(
    tmp_path: Path, rest_catalog: dict[str, str], table: str
) -> None:
    given = os.environ | {"REST_CATALOG": json.dumps(rest_catalog), "REST_TABLE": table}
    for name, value in {"CONDUIT_KILL_AT": "transaction.after_commit:1", "KILL_IN_COMMIT": "2"}.items():
        assert run_child(tmp_path, given | {name: value}) == -signal.SIGKILL
    assert run_child(tmp_path, given) == 0

    assert [(row["n"], row["v"]) for row in rows(rest_catalog, table)] == [(n, n) for n in range(40)]


def run_child(folder: Path, env: dict[str, str]) -> int:
    command = [sys.executable, str(CHILD), str(folder), "iceberg"]
    ran = run_warm(command, env=env, preloaded=LAKE_MODULES)
    print(ran.stdout, ran.stderr)
    return ran.returncode
