"""lookup.file and lookup.table: rows that are found, missing, doubled, changed, and a database that fails."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import batch_of
from conduit_processors import lookup

from conduit_py.errors import FatalError, RecordRefused, TransientError
from conduit_py.record import Record
from conduit_py.sdk import Processor

USERS = "id,name,city\n7,Ann,Rome\n8,Bob,Oslo\n"
Run = Callable[[Processor[Any], Record], Any]


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.csv"
    path.write_text(USERS)
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "users.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id INTEGER, name TEXT, city TEXT)")
        connection.executemany("INSERT INTO users VALUES (?, ?, ?)", [(7, "Ann", "Rome"), (8, "Bob", "Oslo")])
        connection.executemany("INSERT INTO users VALUES (?, ?, ?)", [(9, "Cy", "Bern"), (9, "Di", "Bern")])
    connection.close()
    return path


def file_lookup(path: Path, **more: Any) -> lookup.File:
    return lookup.File(path=path, key="user", column="id", into="who", **more)


def table_lookup(path: Path, **more: Any) -> lookup.Table:
    made = lookup.Table(url=f"sqlite:///{path}", table="users", key="user", column="id", into="who", **more).fresh()
    made.open()
    return made


def test_a_row_of_a_file_is_added(run: Run, users: Path) -> None:
    found = run(file_lookup(users, columns=["name"]), Record.of({"user": 7}))

    assert found.payload.after == {"user": 7, "who": {"name": "Ann"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("u.json", '[{"id": 7, "name": "Ann"}]'),
        ("u.jsonl", '{"id": "7", "name": "Ann"}\n\n{"id": 8, "name": "Bob"}\n'),
    ],
)
def test_other_formats(run: Run, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert run(file_lookup(tmp_path / name), Record.of({"user": "7"})).payload["who"]["name"] == "Ann"


def test_a_record_without_a_row(run: Run, users: Path) -> None:
    record = Record.of({"user": 1})

    assert run(file_lookup(users, missing="keep"), record) is record
    assert record.payload.after == {"user": 1}
    assert run(file_lookup(users, missing="drop"), record) is None
    assert run(file_lookup(users, missing="drop"), Record.of({"user": None})) is None
    with pytest.raises(RecordRefused, match="there is no row with id = '1'"):
        run(file_lookup(users), record)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name\nAnn\n", "its first line has no 'id'"),
        ("id\n7\n7\n", "two rows have id = '7'"),
        ("id\n1\n2\n3\n", "more than rows_max=2"),
        ("", "its first line has no 'id'"),
        ("id,name\n7\n", "line 2 has not as many values"),
        ('id\n"1\n', "unexpected end of data"),
    ],
)
def test_a_file_that_is_no_table_ends_the_run(run: Run, users: Path, text: str, why: str) -> None:
    users.write_text(text)

    with pytest.raises(FatalError, match=why):
        run(file_lookup(users, rows_max=2), Record.of({"user": 7}))


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(users: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = file_lookup(users, refresh_seconds=0).fresh()
    made.open()
    replace(users, "id,name\n7,Ada\n")
    first = made.process(Record.of({"user": 7}))
    replace(users, "nothing")
    second = made.process(Record.of({"user": 7}))

    assert first is not None
    assert second is not None
    assert (first.payload["who"], second.payload["who"]) == ({"id": "7", "name": "Ada"},) * 2
    assert "cannot be read, so the last one stays" in caplog.text


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_row_of_a_table_is_added_with_one_query_for_a_batch(database: Path) -> None:
    made = table_lookup(database, columns=["name"], missing="keep")
    batch = batch_of({"user": 7}, {"user": 8}, {"user": 7}, {"user": 1}, {"user": None}, {"user": [1]}, {}, {"user": 9})

    results = made.process_batch(batch)
    made.close()

    assert [each.payload.get("who") for each in results[:5]] == [  # type: ignore[union-attr]
        {"name": "Ann"}, {"name": "Bob"}, {"name": "Ann"}, None, None,
    ]  # fmt: skip
    assert [str(each) for each in results[5:]] == [
        ".Payload.After.user is a list, which no column holds",
        "the record has no .Payload.After.user: .Payload.After has no field 'user'",
        "several rows have id = '9'",
    ]


def test_the_cache_is_bounded_and_ages(database: Path) -> None:
    asked: list[list[Any]] = []

    class Counted(lookup.Table):
        def _select(self, keys: list[Any]) -> Any:
            asked.append(sorted(keys))
            return super()._select(keys)

    made = Counted(
        url=f"sqlite:///{database}", table="users", key="user", column="id", into="who", missing="keep", cache_size=2
    ).fresh()
    made.open()
    for users in ([7, 8], [7], [1], [8], [7, 1]):
        made.process_batch(batch_of(*({"user": user} for user in users)))
    made.close()

    assert asked == [[7, 8], [1], [8], [7]]


def test_a_table_that_is_not_there_and_a_database_that_fails(tmp_path: Path, database: Path) -> None:
    for options, why in [
        ({"table": "nobody"}, "there is no table 'nobody'"),
        ({"column": "nothing"}, "users has no column 'nothing'"),
        ({"url": "oracel://here"}, "url is none that SQLAlchemy can use here"),
    ]:
        given = {"url": f"sqlite:///{database}", "table": "users", "column": "id", **options}
        made = lookup.Table(key="user", into="who", **given).fresh()  # type: ignore[arg-type]
        made.open()
        with pytest.raises(FatalError, match=why):
            made.process_batch(batch_of({"user": 7}))
        made.close()
    folder = table_lookup(tmp_path)
    with pytest.raises(TransientError, match="does not answer"):
        folder.process_batch(batch_of({"user": 7}))
    folder.close()
