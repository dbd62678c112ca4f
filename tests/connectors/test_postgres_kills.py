"""A pipeline from PostgreSQL to PostgreSQL that is killed again and again under load, by the CDC kit."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from postgres_changes import run_sql, slot_of
from warm_python import WarmPython

from conduit_py.testing.cdc import CdcApplied, CdcDatabase, check_cdc

CHILD = Path(__file__).with_name("cdc_child.py")
KILLS = int(os.environ.get("CONDUIT_POSTGRES_KILLS", "0"))
"""How many kills at random moments follow those at named points. One in four is of the server too."""
SEED = int(os.environ.get("CONDUIT_SEED", "3"))
# Every write to the copy, in its order, in the transaction of the write.
HISTORY = """
CREATE TABLE applied (number bigserial PRIMARY KEY, name text, id bigint, version bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
    INSERT INTO applied (name, id, version) VALUES (TG_TABLE_NAME, NEW.id, (to_jsonb(NEW) ->> TG_ARGV[0])::bigint);
    RETURN NEW;
END';
CREATE TRIGGER note AFTER INSERT OR UPDATE ON cdc_rows FOR EACH ROW EXECUTE FUNCTION note('version');
CREATE TRIGGER note AFTER INSERT OR UPDATE ON cdc_ledger FOR EACH ROW EXECUTE FUNCTION note('n');
"""


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_both_databases_are_equal_after_kills_of_the_process_and_of_the_server(
    own_postgres: Any, tmp_path: Path, delivery: Literal["at_least_once", "exactly_once"]
) -> None:
    def restart() -> None:
        own_postgres.kill()
        own_postgres.start()

    origin, target = own_postgres.create_database(), own_postgres.create_database()
    # Only the whole row as identity has large values in a change of the key.
    identity = ["ALTER TABLE cdc_rows REPLICA IDENTITY FULL"] if delivery == "at_least_once" else []
    database = database_at(origin, setup=identity, moves_large_values=bool(identity), restart=restart)
    copy = database_at(target)
    copy.create_tables()
    run_sql(target, HISTORY)
    report = check_cdc(
        [sys.executable, CHILD, origin, target, tmp_path / "state", slot_of(origin), delivery],
        origin=database,
        copy=copy,
        delivery=delivery,
        atomic=delivery == "exactly_once",
        seed=SEED,
        random_kills=KILLS,
        server_kills=max(1, KILLS // 4),
        history=lambda: map(CdcApplied._make, run_sql(target, "SELECT name, id, version FROM applied ORDER BY number")),
        request_snapshot=lambda process: os.kill(process, signal.SIGUSR1),
        popen=WarmPython,
    )

    print(report)
    assert report.kills.total() == 6 + max(1, KILLS)
    assert report.server_kills == max(1, KILLS // 4)


def database_at(dsn: str, **options: Any) -> CdcDatabase:
    return CdcDatabase(
        # Prepared statements would not survive a new column.
        connect=partial(psycopg.connect, dsn, prepare_threshold=None),
        away=psycopg.OperationalError,
        types={
            "integer": "bigint",
            "text": "text",
            "bytes": "bytea",
            "decimal": "numeric(20, 6)",
            "time": "timestamp",
        },
        begin_look="SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        **options,
    )
