"""What becomes of the copy of a table when the table changes: a renamed column, a changed type, by each policy."""

from typing import Any

import pytest
import trio
from conduit_connectors import postgres as connector
from postgres_changes import PATIENCE_SECONDS, run_sql, slot_of

from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

RENAMED = ("ALTER TABLE t RENAME v TO w", "UPDATE t SET w = 20 WHERE id = 2", "INSERT INTO t VALUES (3, 30)")
WIDENED = (
    "ALTER TABLE t ALTER v TYPE bigint",
    f"UPDATE t SET v = {2**40} WHERE id = 2",
    "INSERT INTO t VALUES (3, 30)",
)
TEXT = ("ALTER TABLE t ALTER v TYPE text", "UPDATE t SET v = 'b' WHERE id = 2", "INSERT INTO t VALUES (3, '30')")


@pytest.mark.parametrize(
    ("changes", "policy", "copy", "letters"),
    [
        (RENAMED, {}, [(1, 1), (2, 2)], 2),
        # The copy keeps the column of the old name, with the last values that it had under that name.
        (RENAMED, {"on_new_field": "add"}, [(1, 1, None), (2, 2, 20), (3, None, 30)], 0),
        (RENAMED, {"on_new_field": "ignore"}, [(1, 1), (2, 2), (3, None)], 0),
        (WIDENED, {}, [(1, 1), (2, 2), (3, 30)], 1),
        (WIDENED, {"on_type": "widen"}, [(1, 1), (2, 2**40), (3, 30)], 0),
        (TEXT, {"on_type": "widen"}, [(1, 1), (2, 2), (3, 30)], 1),
        (TEXT, {"on_type": "text"}, [(1, "1"), (2, "b"), (3, "30")], 0),
    ],
)
async def test_a_table_that_is_altered(
    changes: tuple[str, ...], policy: dict[str, Any], copy: list[Any], letters: int, postgres: str
) -> None:
    run_sql(postgres, "CREATE TABLE t (id integer PRIMARY KEY, v integer)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    run_sql(postgres, "CREATE TABLE copy (id integer PRIMARY KEY, v integer)")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])
    table = connector.Destination(url=postgres, table="copy", mode="upsert", **policy)
    pipeline = Pipeline(
        "p",
        sources=[Source("t", source)],
        destinations=[Destination("copy", table)],
        dead_letters=DeadLetters("drop", window_size=0),
        delivery="exactly_once",
    )
    supervisor = Supervisor(pipeline, MemoryStore())

    async def wait_for(acked: int) -> None:
        while supervisor.progress().acked < acked:
            assert supervisor.state.status is not Status.DEGRADED, supervisor.state.error
            await trio.sleep(0.02)

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await wait_for(2)
            run_sql(postgres, *changes)
            await wait_for(4)
            supervisor.stop()

    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert run_sql(postgres, "SELECT * FROM copy ORDER BY id") == copy
    assert supervisor.progress().dead_letters == letters
