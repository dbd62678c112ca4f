"""After kill -9 a transaction that was acknowledged is there, and any other is there whole or not at all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from warm_python import WarmPython

from conduit_py.errors import Fenced
from conduit_py.store.claim import Changes
from conduit_py.store.store import open_store

CHILD = Path(__file__).with_name("claim_child.py")


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path)
    request.getfixturevalue("database")
    return str(request.getfixturevalue("shared_database"))


def start(state: str, owners: int, kill_at: str | None = None) -> subprocess.Popen[str]:
    environment = os.environ | ({"CONDUIT_KILL_AT": kill_at} if kill_at else {})
    command = [sys.executable, str(CHILD), "commit", state, str(owners)]
    return WarmPython(command, stdout=subprocess.PIPE, text=True, env=environment)


def acknowledged(lines: Iterable[str]) -> dict[str, int]:
    return {owner: int(number) for owner, number in (line.split() for line in lines)}


async def read_committed(state: str, owners: int) -> dict[str, int]:
    """The last transaction of every owner, after checking that all that belongs to it is there and nothing more."""
    last = {}
    async with await open_store(state) as store:
        for owner in (f"owner-{number}" for number in range(owners)):
            # To claim waits for what a killed process may have left under way in a server.
            claim = await store.claim(owner)
            if claim.committed == 0:
                continue
            number = last[owner] = claim.committed
            keys = [b"%d" % each for each in range(1, number + 2)]
            pending = await store.outbox.lease(owner, "test", 0, 1_000_000)
            assert pending is not None
            assert claim.checkpoint == b"%d" % number
            assert await claim.get(b"total") == b"%d" % (number * (number + 1) // 2)
            assert await claim.get(b"last %d" % (number % 3)) == b"%d" % number
            assert await claim.seen(owner, keys) == set(keys[:-1])
            assert [intent.key for intent in pending] == keys[:-1]
            assert await store.positions(owner) == {"web": b"%d" % number}
    return last


async def test_transactions_that_were_acknowledged_survive_kill_9_again_and_again(state: str) -> None:
    before: dict[str, int] = {}
    for lines in (1, 50, 500):
        with start(state, 5) as child:
            assert child.stdout is not None
            first = [child.stdout.readline() for _ in range(lines)]
            child.kill()
            told = acknowledged([*first, *child.stdout])

        kept = await read_committed(state, 5)
        for owner, number in (before | told).items():
            assert kept[owner] - number in (0, 1)
        before = kept
    assert len(before) == 5


# The claim itself is the first commit.
@pytest.mark.parametrize(
    ("point", "kept"), [("before_commit", 3), ("within_commit", 3), ("after_commit", 4)], ids=lambda value: str(value)
)
async def test_killed_around_a_commit_the_transaction_is_there_or_it_is_not(state: str, point: str, kept: int) -> None:
    with start(state, 1, f"store.{point}:5") as child:
        assert child.stdout is not None
        told = acknowledged(child.stdout)

    assert child.returncode == -signal.SIGKILL
    assert told == {"owner-0": 3}
    assert await read_committed(state, 1) == {"owner-0": kept}


async def test_a_fence_grows_across_restarts_that_a_kill_forced(state: str) -> None:
    for point in ("before_commit", "within_commit", "after_commit"):
        with start(state, 1, f"store.{point}:1"):
            pass
    async with await open_store(state) as store:
        claim = await store.claim("owner-0")
        newer = await store.claim("owner-0")
        with pytest.raises(Fenced):
            await claim.commit(Changes(1, b""))

    # One of the three was durable.
    assert (claim.fence, newer.fence) == (2, 3)
