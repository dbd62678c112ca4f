"""States of every format so far are opened, migrated and continued."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from conduit_connectors import file, generator

import conduit_py
from conduit_py import DeadLetters, Pipeline, Record, RecordRefused, State, processor
from conduit_py.store.postgres.tables import FORMAT_VERSION as POSTGRES_VERSION
from conduit_py.store.sqlite.database import STATE
from conduit_py.store.sqlite.letters import FORMAT as LETTERS
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.stored_letter import LetterFilter

FORMATS = Path(__file__).parent / "formats"
NAMES = sorted(file.parent.name for file in FORMATS.glob("*/state.db"))


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a state of an earlier format, and what its pipelines wrote."""
    folder = tmp_path / "old"
    shutil.copytree(FORMATS / request.param, folder)
    return folder


@processor
def check(record: Record) -> Record:
    if record.payload["n"] == 3:
        raise RecordRefused("three is refused")
    return record


@processor(state=True)
def total(record: Record, state: State) -> Record:
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    record.payload["sum"] = state.get("sum")
    return record


def numbers(count: int) -> generator.Source:
    return generator.Source(count=count, seed=1, fields={"n": "index"})


def lines(path: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_there_is_a_state_of_every_format() -> None:
    states = {version_of(FORMATS / name / "state.db") for name in NAMES}
    letters = {version_of(path) for name in NAMES if (path := FORMATS / name / "letters.db").exists()}

    assert states == set(range(1, STATE.version + 1))
    assert letters == set(range(1, LETTERS.version + 1))


def test_a_run_continues_where_the_old_version_ended(old: Path) -> None:
    pipeline = Pipeline(
        "orders",
        sources={"in": numbers(8)},
        processors=[check],
        destinations={"out": file.Destination(path=str(old / "out.jsonl"), format="json")},
        dead_letters=DeadLetters.keep(),
    )
    before = lines(old / "out.jsonl")
    outcome = conduit_py.run(pipeline, state=old)
    outcome.raise_for_error()

    assert outcome.counts.read == 3
    assert lines(old / "out.jsonl") == [*before, {"n": 5}, {"n": 6}, {"n": 7}]
    assert version_of(old / "state.db") == STATE.version


def run_sums(old: Path, state: Path | str) -> list[int]:
    """Continue the exactly-once pipeline, and return the sums that it has written in all."""
    pipeline = Pipeline(
        "sums",
        sources={"in": numbers(8)},
        processors=[check, total],
        destinations={"out": file.Destination(path=str(old / "sums.jsonl"), format="json")},
        dead_letters=DeadLetters.keep(),
        delivery="exactly_once",
    )
    conduit_py.run(pipeline, state=state).raise_for_error()
    return [row["sum"] for row in lines(old / "sums.jsonl")]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "1"])
def test_an_exactly_once_pipeline_continues_with_its_state(name: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(FORMATS / name, old)

    assert run_sums(old, old) == [0, 1, 3, 7, 12, 18, 25]


@pytest.mark.parametrize("version", range(1, POSTGRES_VERSION + 1))
def test_a_state_in_postgresql_continues_too(version: int, tmp_path: Path, postgres: str) -> None:
    old = tmp_path / "old"
    shutil.copytree(FORMATS / f"postgres-{version}", old)
    with psycopg.connect(postgres) as connection:
        connection.execute((old / "state.sql").read_bytes())

    assert run_sums(old, postgres) == [0, 1, 3, 7, 12, 18, 25]


async def test_old_dead_letters_are_whole(old: Path) -> None:
    if not (old / "letters.db").exists():
        pytest.skip("this format had none")
    async with await SqliteStore.open(old) as store:
        page = await store.letters.page(LetterFilter())
        letters = [await store.letters.letter(summary.id) for summary in page.letters]

    assert sorted(letter.pipeline for letter in letters) == ["orders", "sums"]
    assert [letter.record.payload.after for letter in letters] == [{"n": 3}, {"n": 3}]
