"""The promise of exactly-once, attacked at every durable operation, on the real code, in memory.

Each scenario checks the whole promise: I4 (nothing is seen before the commit), I6 (positions, state, seen keys
and outbox agree), I7 (a zombie commits nothing), I8 (what was committed is shown), I11 (output or letter,
once), I12 (acks in order, once, after the commit). CONDUIT_ENUMERATE=all tries every pair of moments.
"""

import os
from collections.abc import Callable, Mapping, Sequence

import pytest
from crash_enumeration import Enumeration
from exactly_once_scenario import ExactlyOnceScenario, ScenarioStore

from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.exactly_once.gate import Sealed
from conduit_py.exactly_once.participants import Participants, TransactionCheckpoint
from conduit_py.graph.node import Graph
from conduit_py.record import Record
from conduit_py.store.claim import Changes, Claim
from conduit_py.store.store import Store
from conduit_py.store.tables import Tables
from conduit_py.stream.commit import RunParts, Task

EVERY = 1 if os.environ.get("CONDUIT_ENUMERATE") == "all" else 13
"""A prime number, so that over the pairs every moment has its turn."""


def scenario_with_home() -> ExactlyOnceScenario:
    return ExactlyOnceScenario(with_home=True)


def scenario_without_home() -> ExactlyOnceScenario:
    return ExactlyOnceScenario(with_home=False)


BOTH = pytest.mark.parametrize("scenario", [scenario_with_home, scenario_without_home])


@BOTH
def test_i4_i6_i8_i11_i12_killed_once(scenario: Callable[[], ExactlyOnceScenario]) -> None:
    report = Enumeration(scenario).kill_once()

    assert report.broken == {}
    assert report.trials >= 40


@BOTH
def test_i8_killed_twice(scenario: Callable[[], ExactlyOnceScenario]) -> None:
    report = Enumeration(scenario, every=EVERY).kill_twice()

    assert report.broken == {}
    assert report.trials >= 1000 // EVERY


@BOTH
def test_i3_i7_zombies_change_nothing(scenario: Callable[[], ExactlyOnceScenario]) -> None:
    report = Enumeration(scenario, every=EVERY).freeze_and_resume()

    assert report.broken == {}
    assert report.trials >= 500 // EVERY


class TestDeferring:
    """GZ-T8 under attack: a processor has most transactions end before a record that is already read."""

    @pytest.mark.parametrize("with_home", [True, False])
    def test_gz_t8_kill_once_while_records_are_deferred(self, with_home: bool) -> None:
        report = Enumeration(lambda: ExactlyOnceScenario(with_home=with_home, deferring=True)).kill_once()

        assert report.broken == {}
        assert report.trials >= 50

    @pytest.mark.parametrize("with_home", [True, False])
    def test_gz_t8_killed_twice_and_frozen(self, with_home: bool) -> None:
        def scenario() -> ExactlyOnceScenario:
            return ExactlyOnceScenario(with_home=with_home, deferring=True)

        killed, frozen = (
            Enumeration(scenario, every=EVERY).kill_twice(),
            Enumeration(scenario, every=EVERY).freeze_and_resume(),
        )

        assert (killed.broken, frozen.broken) == ({}, {})
        assert killed.trials >= 1300 // EVERY
        assert frozen.trials >= 600 // EVERY


@BOTH
def test_me_17_killed_once_while_the_pipeline_forwards_what_it_publishes(
    scenario: Callable[[], ExactlyOnceScenario],
) -> None:
    def forwarding() -> ExactlyOnceScenario:
        return ExactlyOnceScenario(with_home=scenario().with_home, forwarding=True)

    report = Enumeration(forwarding).kill_once()

    assert report.broken == {}
    assert report.trials >= 60


class TestGroups:
    """Atomic sources whose groups are larger than a transaction, with progress at the end of each group."""

    @pytest.mark.parametrize("with_home", [True, False])
    def test_killed_once_inside_and_between_groups(self, with_home: bool) -> None:
        report = Enumeration(lambda: ExactlyOnceScenario(with_home=with_home, grouped=True)).kill_once()

        assert report.broken == {}
        assert report.trials >= 20

    @pytest.mark.parametrize("with_home", [True, False])
    def test_killed_twice_and_frozen(self, with_home: bool) -> None:
        def scenario() -> ExactlyOnceScenario:
            return ExactlyOnceScenario(with_home=with_home, grouped=True)

        killed = Enumeration(scenario, every=EVERY).kill_twice()
        frozen = Enumeration(scenario, every=EVERY).freeze_and_resume()

        assert (killed.broken, frozen.broken) == ({}, {})
        assert killed.trials >= 300 // EVERY
        assert frozen.trials >= 150 // EVERY


class TestTheHarnessItself:
    """Without what the promise rests on, the harness must find violations, or it would prove nothing."""

    @BOTH
    def test_no_fence_check(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        def unfenced() -> ExactlyOnceScenario:
            made = scenario()
            made.store = UnfencedStore()
            for storage in made.storages.values():
                storage.checks_fences = False
            return made

        assert Enumeration(unfenced, only_one=True).freeze_and_resume().broken

    @BOTH
    def test_no_resending_of_intents(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        assert Enumeration(scenario, with_participants(Forgetful), only_one=True).kill_once().broken

    @BOTH
    def test_shown_before_the_commit(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        assert Enumeration(scenario, with_participants(Hasty), only_one=True).kill_once().broken

    @BOTH
    def test_acked_before_the_commit(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        assert Enumeration(scenario, HastyAck, only_one=True).kill_once().broken

    @BOTH
    def test_positions_past_what_is_held(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        def deferring() -> ExactlyOnceScenario:
            return ExactlyOnceScenario(with_home=scenario().with_home, deferring=True)

        assert Enumeration(deferring, PastTheHeld, only_one=True).kill_once().broken

    @BOTH
    def test_groups_divided(self, scenario: Callable[[], ExactlyOnceScenario]) -> None:
        def grouped() -> ExactlyOnceScenario:
            return ExactlyOnceScenario(with_home=scenario().with_home, grouped=True)

        assert Enumeration(grouped, Dividing, only_one=True).kill_once().broken


class Dividing(CommitTogether):
    """Does not wait for the rest of a group."""

    async def admit(
        self, source: str, records: Sequence[Record], positions: Sequence[bytes], continues: bool = False
    ) -> None:
        await super().admit(source, records, positions, continues=False)


class UnfencedStore(ScenarioStore):
    """Lets every writer commit, as if it held the newest claim."""

    async def claim(self, owner: str) -> Claim:
        return Unfenced(owner, await self.transact(lambda tables: tables.claim(owner)), self)


class Unfenced(Claim):
    async def commit(self, changes: Changes) -> None:
        def commit(tables: Tables) -> None:
            newest = tables.claim_state(self.owner)
            assert newest is not None
            tables.commit(self.owner, newest.fence, changes)

        await self._access.transact(commit)
        self.committed, self.checkpoint = changes.number, changes.checkpoint


class Forgetful(Participants):
    """Does not apply what the last transaction left."""

    async def begin(self, claim: Claim, intents: Mapping[str, bytes]) -> None:
        await super().begin(claim, {})


class Hasty(Participants):
    """Shows what is staged, and only then commits."""

    async def commit(self, claim: Claim, changes: Changes) -> None:
        await self.apply(TransactionCheckpoint.decode("scenario", changes.checkpoint).intents)
        await super().commit(claim, changes)


class HastyAck(CommitTogether):
    """Acks, and only then commits."""

    async def _commit(self, sealed: Sealed) -> None:
        for source, ranges in sealed.ranges.items():
            if ranges:
                await self._parts.settlers[source]._ack([each.positions for each in ranges])
        await super()._commit(sealed)


class PastTheHeld(CommitTogether):
    """Takes what is held for the next transaction to be processed in this one: its positions are in the commit."""

    def _seal(self) -> Sealed:
        held = [batch.span for deferral in self._deferrals.values() for batch in deferral.held]
        self.past = {span.source: span.positions[-1] for span in held}
        return super()._seal()

    def _changes(self, sealed: Sealed, intents: dict[str, bytes]) -> Changes:
        changes = super()._changes(sealed, intents)
        changes.positions |= self.past
        return changes


def with_participants(kind: type[Participants]) -> Callable[[Graph, Store], CommitTogether]:
    class Lacking(CommitTogether):
        def enlist(self, parts: RunParts) -> list[Task]:
            tasks = super().enlist(parts)
            self._participants = kind(parts.destinations, {})
            return tasks

    return Lacking
