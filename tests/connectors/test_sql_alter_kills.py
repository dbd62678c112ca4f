"""A pipeline that is killed between the change of its table and the commit: each row is there once."""

import os
import signal
import sys
from pathlib import Path

import pytest
from sql_world import postgres_world, sqlite_world
from warm_python import WarmPython

CHILD = Path(__file__).with_name("sql_alter_child.py")
POINTS = [
    # The second transaction adds the column. The one after it begins with the change of the type.
    "transaction.before_commit:2",
    "transaction.after_home_commit:1",
    "writer.after_write:1",
]


def run_child(folder: Path, url: str | None, point: str | None) -> int:
    command = [sys.executable, str(CHILD), str(folder), *([url] if url else [])]
    environment = os.environ | ({"CONDUIT_KILL_AT": point} if point else {})
    return WarmPython(command, env=environment).wait(300)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_rows_and_the_change_of_their_table_are_one_commit(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url: str | None = request.getfixturevalue("postgres") if kind == "postgres" else None
    world = postgres_world(url) if url else sqlite_world(tmp_path / "data.db")
    seen = []
    for point in POINTS:
        assert run_child(tmp_path, url, point) == -signal.SIGKILL, point
        seen.append((len(world.rows_of("t")), list(world.types())))
    assert run_child(tmp_path, url, None) == 0

    assert seen == [(10, ["n"]), (20, ["n", "v"]), (20, ["n", "v"])]
    rows = [(n, None if v is None else float(v)) for n, v in world.read("SELECT n, v FROM t ORDER BY n")]
    assert rows == [(n, None if n < 10 else n if n < 20 else n + 0.5) for n in range(40)]
    assert world.types()["v"] == "numeric"
