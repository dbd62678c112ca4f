"""A forwarder that is killed: everything arrives, in order, and a receiver that looks at the keys sees it once."""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from warm_python import WarmPython

from conduit_py.store.claim import Changes, PublishedMessage
from conduit_py.store.store import open_store

CHILD = Path(__file__).with_name("forwarder_child.py")


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "state") if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


def forward(state: str, file: Path, kill_at: str = "") -> int:
    command = [sys.executable, str(CHILD), state, str(file)]
    return WarmPython(command, env=os.environ | {"CONDUIT_KILL_AT": kill_at}).wait(300)


def received(file: Path) -> dict[str, list[str]]:
    """What a receiver keeps that recognises a message by its key, per target."""
    kept: dict[str, dict[str, str]] = {}
    for line in file.read_text().splitlines():
        target, key, body = line.split()
        kept.setdefault(target, {}).setdefault(key, body)
    return {target: list(bodies.values()) for target, bodies in kept.items()}


async def intend(state: str, messages: Iterable[tuple[str, int]]) -> None:
    async with await open_store(state) as store:
        claim = await store.claim("orders")
        published = [PublishedMessage(target, b"key-%d" % number, b"%d" % number) for target, number in messages]
        await claim.commit(Changes(claim.committed + 1, b"", messages=published))


@pytest.mark.parametrize(
    "kill_at", ["forwarder.sent:1", "forwarder.sent:2", "forwarder.removed:1", "store.before_commit:1"]
)
async def test_me_17_what_was_committed_arrives_after_a_kill_and_has_one_effect(
    state: str, tmp_path: Path, kill_at: str
) -> None:
    file = tmp_path / "received"
    file.touch()
    await intend(state, [("mail", number) for number in range(8)])
    killed = forward(state, file, kill_at)
    before = received(file).get("mail", [])
    ended = forward(state, file)

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert before == [str(number) for number in range(len(before))]
    assert len(before) < 8
    assert received(file) == {"mail": [str(number) for number in range(8)]}


def forward_twice(state: str, file: Path, nth: int) -> None:
    """Two processes at once, each killed at a point of its own."""
    command = [sys.executable, str(CHILD), state, str(file)]
    points = [os.environ | {"CONDUIT_KILL_AT": f"forwarder.{point}:{nth}"} for point in ("sent", "removed")]
    for child in [WarmPython(command, env=environment) for environment in points]:
        child.wait(300)


async def test_me_18_two_forwarders_that_are_killed_again_and_again_keep_the_order(
    postgres: str, tmp_path: Path
) -> None:
    file = tmp_path / "received"
    file.touch()
    await intend(postgres, [(f"target-{number % 3}", number) for number in range(60)])
    for nth in (1, 3):
        forward_twice(postgres, file, nth)
    ended = forward(postgres, file)

    assert ended == 0
    assert received(file) == {
        f"target-{each}": [str(number) for number in range(60) if number % 3 == each] for each in range(3)
    }
