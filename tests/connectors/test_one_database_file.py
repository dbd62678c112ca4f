"""Several destinations of one exactly-once pipeline that write tables of the same SQLite file: all of them stage."""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import memory, sqlite
from warm_python import WarmPython

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, State, processor
from conduit_py.errors import RecordRefused
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.guarantees import committing_destination, guarantees
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end

CHILD = Path(__file__).with_name("one_database_child.py")


@processor(state=True)
def running_sum(record: Record, state: State) -> Record:
    if record.payload["n"] % 10 == 7:
        raise RecordRefused("no sevens")
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    record.payload["sum"] = state.get("sum")
    return record


def pipeline(path: Path, *tables: str, count: int = 100, **more: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=[{"n": n} for n in range(count)]), batch_size=10)],
        processors=[running_sum],
        destinations=[Destination(table, sqlite.Destination(path=path, table=table)) for table in tables],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=20),
        **({"dead_letters": DeadLetters("drop")} | more),
    )


def rows(path: Path, table: str) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [n for (n,) in connection.execute(f"SELECT n FROM {table} ORDER BY rowid")]


def expected(count: int = 100) -> list[int]:
    return [n for n in range(count) if n % 10 != 7]


def test_none_of_them_carries_the_commit_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    (tmp_path / "link").symlink_to(path)
    shared = compile_pipeline(pipeline(path, "a", "b"))
    linked = pipeline(path, "a")
    linked.destinations.append(Destination("b", sqlite.Destination(path=tmp_path / "link", table="b")))
    others = pipeline(path, "a", "b")
    others.destinations.insert(0, Destination("c", sqlite.Destination(path=tmp_path / "other.db", table="c")))

    assert committing_destination(shared) is committing_destination(compile_pipeline(linked)) is None
    assert [each.why.split()[1] for each in guarantees(shared)] == ["stages", "stages"]
    assert committing_destination(compile_pipeline(others)) == "c"


async def test_both_tables_have_every_row_once_and_in_order(tmp_path: Path) -> None:
    path, store = tmp_path / "data.db", MemoryStore()
    for count in (50, 100):
        outcome = await run_to_end(pipeline(path, "a", "b", count=count), store)
        assert outcome.status is Status.COMPLETED, outcome.error

    assert rows(path, "a") == rows(path, "b") == expected()


async def test_dead_letters_may_go_there_too(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    letters = DeadLetters(sqlite.Destination(path=path, table="letters", layout="json"))
    outcome = await run_to_end(pipeline(path, "a", dead_letters=letters), MemoryStore())
    with sqlite3.connect(path) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM letters")

    assert outcome.status is Status.COMPLETED, outcome.error
    assert (rows(path, "a"), count) == (expected(), 10)


async def test_a_destination_that_was_the_home_may_be_joined_by_another_and_be_alone_again(tmp_path: Path) -> None:
    path, store = tmp_path / "data.db", MemoryStore()
    for count, tables in ((30, ["a"]), (60, ["a", "b"]), (100, ["a"])):
        outcome = await run_to_end(pipeline(path, *tables, count=count), store)
        assert outcome.status is Status.COMPLETED, outcome.error

    assert rows(path, "a") == expected()
    assert rows(path, "b") == [n for n in expected(60) if n >= 30]


@pytest.mark.parametrize(
    "kill_at", ["transaction.before_commit:2", "transaction.after_commit:2", "transaction.after_apply:2"]
)
def test_killed_while_both_are_written(tmp_path: Path, kill_at: str) -> None:
    def run(kill: str = "") -> int:
        command = [sys.executable, str(CHILD), str(tmp_path)]
        return WarmPython(command, env=os.environ | {"CONDUIT_KILL_AT": kill}).wait(300)

    assert (run(kill_at), run()) == (-signal.SIGKILL, 0)
    assert rows(tmp_path / "data.db", "a") == rows(tmp_path / "data.db", "b") == list(range(100))
