"""A pipeline from MariaDB to MariaDB that is killed again and again under load, by the CDC kit."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pymysql
import pytest
from conduit_connectors.mysql.address import parse_address
from mariadb_changes import replica_of, run_sql
from warm_python import WarmPython

from conduit_py.testing.cdc import CdcApplied, CdcDatabase, check_cdc

CHILD = Path(__file__).with_name("cdc_child.py")
KILLS = int(os.environ.get("CONDUIT_MARIADB_KILLS", "0"))
"""How many kills at random moments follow those at named points. One in four is of the server too."""
SEED = int(os.environ.get("CONDUIT_SEED", "3"))
# Every write to the copy, in its order, in the transaction of the write.
HISTORY = [
    "CREATE TABLE applied (number bigint AUTO_INCREMENT PRIMARY KEY, name text, id bigint, version bigint)",
    *(
        f"CREATE TRIGGER note_{table}_{event} AFTER {event} ON {table} FOR EACH ROW "
        f"INSERT INTO applied (name, id, version) VALUES ('{table}', NEW.id, NEW.{version})"
        for table, version in {"cdc_rows": "version", "cdc_ledger": "n"}.items()
        for event in ("INSERT", "UPDATE")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"] if KILLS else ["exactly_once"])
def test_both_databases_are_equal_after_kills_of_the_process_and_of_the_server(
    own_mariadb: Any, tmp_path: Path, delivery: Literal["at_least_once", "exactly_once"]
) -> None:
    def restart() -> None:
        own_mariadb.kill()
        own_mariadb.start()

    def history() -> Any:
        rows = run_sql(target, "SELECT name, id, version FROM applied ORDER BY number")
        return (CdcApplied(name, int(key), int(version)) for name, key, version in rows)

    origin, target = own_mariadb.create_database(), own_mariadb.create_database()
    copy = database_at(target)
    copy.create_tables()
    run_sql(target, *HISTORY)
    report = check_cdc(
        [sys.executable, CHILD, origin, target, tmp_path / "state", str(replica_of(origin)), delivery],
        origin=database_at(origin, restart=restart),
        copy=copy,
        delivery=delivery,
        atomic=delivery == "exactly_once",
        seed=SEED,
        random_kills=KILLS,
        server_kills=max(1, KILLS // 4),
        history=history,
        request_snapshot=lambda process: os.kill(process, signal.SIGUSR1),
        popen=WarmPython,
    )

    print(report)
    assert report.kills.total() == 6 + max(1, KILLS)
    assert report.server_kills == max(1, KILLS // 4)


def database_at(url: str, **options: Any) -> CdcDatabase:
    address = parse_address(url)
    names = ("host", "port", "user", "database")
    return CdcDatabase(
        connect=partial(pymysql.connect, **{name: address[name] for name in names}, charset="utf8mb4"),
        away=pymysql.Error,
        types={
            "integer": "bigint",
            "text": "longtext",
            "bytes": "longblob",
            "decimal": "decimal(20, 6)",
            "time": "datetime(6)",
        },
        begin_look="START TRANSACTION WITH CONSISTENT SNAPSHOT",
        **options,
    )
