"""Several workers write to the tables of one database: no lock outlives a call, and each shows what a dead one left."""

from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import postgres, sqlite
from conduit_connectors.sql.destination import SqlDestination
from pydantic import SecretStr

from conduit_py.batch import Batch, Span
from conduit_py.record import Record


class Shared:
    """A database, and the destinations of workers that stage."""

    def __init__(self, kind: str, place: str) -> None:
        self._kind = kind
        self._place = place

    def worker(self, owner: str, *, table: str = "t", fence: int = 1) -> SqlDestination[Any]:
        made: SqlDestination[Any]
        if self._kind == "sqlite":
            made = sqlite.Destination(path=Path(self._place), table=table)
        else:
            made = postgres.Destination(url=SecretStr(self._place), table=table)
        made.open()
        made.claim(owner, fence)
        made.begin(owner, fence, [])
        return made


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    sqlite_place = str(tmp_path / "data.db")
    return Shared(request.param, sqlite_place if request.param == "sqlite" else request.getfixturevalue("postgres"))


def batch(*numbers: int) -> Batch:
    return Batch.whole(Span("p", "s", 0, [b"%d" % n for n in numbers]), [Record.of({"n": n}) for n in numbers])


def shown(worker: SqlDestination[Any]) -> list[int]:
    return [n for (n,) in worker._db.rows("SELECT n FROM t")]


def test_two_workers_write_within_their_transactions_at_the_same_time(shared: Shared) -> None:
    one, other = shared.worker("one"), shared.worker("other")
    one.write(batch(1))
    other.write(batch(2))
    one.write(batch(3))

    first, second = one.stage(), other.stage()
    assert first is not None
    assert second is not None
    other.apply(second)
    one.apply(first)

    assert shown(one) == [2, 1, 3]
    one.teardown()
    other.teardown()


def test_a_row_that_an_earlier_one_of_the_transaction_makes_impossible_is_still_refused(shared: Shared) -> None:
    worker = shared.worker("one")
    worker._db.run("CREATE TABLE t (n INTEGER UNIQUE)")

    assert worker.write(batch(1, 2)) == {}
    refused = worker.write(batch(3, 2))
    assert list(refused) == [1]
    stage = worker.stage()
    assert stage is not None
    worker.apply(stage)

    assert shown(worker) == [1, 2, 3]
    worker.teardown()


def test_what_a_dead_worker_committed_is_shown_by_the_one_that_goes_on_and_only_once(shared: Shared) -> None:
    dead, heir = shared.worker("dead"), shared.worker("heir")
    dead.write(batch(1, 2))
    stage = dead.stage()
    assert stage is not None

    assert heir.apply_for("dead", stage)
    assert heir.apply_for("dead", stage)
    heir.write(batch(3))
    own = heir.stage()
    assert own is not None
    heir.apply(own)
    again = shared.worker("dead", fence=2)
    again.apply(stage)

    assert shown(heir) == [1, 2, 3]
    assert not heir.apply_for("a stranger", stage)
    for each in (dead, heir, again):
        each.teardown()
