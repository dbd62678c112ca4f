"""Dead letters that are sent again in an exactly-once pipeline, attacked at every durable operation.

Each is delivered once to those who refused it, in the transaction that says so (I4, I6, I11), or is kept with one
more refusal. CONDUIT_ENUMERATE=all tries every pair of moments.
"""

import os
from collections.abc import Callable

import msgspec
import pytest
from crash_enumeration import Enumeration
from replay_scenario import ReplayScenario

from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.exactly_once.gate import Sealed
from conduit_py.exactly_once.participants import TransactionCheckpoint
from conduit_py.store.claim import Changes

EVERY = 1 if os.environ.get("CONDUIT_ENUMERATE") == "all" else 29


def scenario_with_home() -> ReplayScenario:
    return ReplayScenario(with_home=True)


def scenario_without_home() -> ReplayScenario:
    return ReplayScenario(with_home=False)


BOTH = pytest.mark.parametrize("scenario", [scenario_with_home, scenario_without_home])


@BOTH
def test_i4_i6_i8_i11_a_letter_is_delivered_once_however_its_run_is_killed(
    scenario: Callable[[], ReplayScenario],
) -> None:
    report = Enumeration(scenario).kill_once()

    assert report.broken == {}
    assert report.trials >= 50


@BOTH
def test_i8_killed_twice(scenario: Callable[[], ReplayScenario]) -> None:
    report = Enumeration(scenario, every=EVERY).kill_twice()

    assert report.broken == {}
    assert report.trials >= 1000 // EVERY


@BOTH
def test_i7_a_zombie_neither_delivers_nor_settles_a_letter(scenario: Callable[[], ReplayScenario]) -> None:
    report = Enumeration(scenario, every=EVERY).freeze_and_resume()

    assert report.broken == {}
    assert report.trials >= 500 // EVERY


class TestTheHarnessItself:
    """Without what the promise rests on, the harness must find violations, or it would prove nothing."""

    @BOTH
    def test_letters_forgotten_before_the_commit(self, scenario: Callable[[], ReplayScenario]) -> None:
        assert Enumeration(scenario, Hasty, only_one=True).kill_once().broken

    @BOTH
    def test_nothing_about_letters_in_the_commit(self, scenario: Callable[[], ReplayScenario]) -> None:
        assert Enumeration(scenario, Forgetful, only_one=True).kill_once().broken


class Hasty(CommitTogether):
    """Forgets letters, and only then commits."""

    async def _commit(self, sealed: Sealed) -> None:
        await self._store.letters.settle(sealed.replayed)
        await super()._commit(sealed)


class Forgetful(CommitTogether):
    """Does not note in the commit what became of letters."""

    def _changes(self, sealed: Sealed, intents: dict[str, bytes]) -> Changes:
        changes = super()._changes(sealed, intents)
        checkpoint = TransactionCheckpoint.decode("scenario", changes.checkpoint)
        changes.checkpoint = msgspec.structs.replace(checkpoint, replayed=[]).encode()
        return changes
