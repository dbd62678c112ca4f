"""Dead letters of an exactly-once pipeline that are sent again: they take part in its transactions."""

from collections.abc import Sequence
from typing import Any

import trio
from conduit_connectors import memory
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, State, TransactionLimits, processor, sdk
from conduit_py.errors import RecordRefused
from conduit_py.exactly_once.participants import decode_replays, encode_replays
from conduit_py.lifecycle.dead_letter_service import DeadLetterService
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter, LetterState, SettledLetter, StoredLetter
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)

EVERYTHING = LetterFilter()


def made(
    *destinations: sdk.DestinationConnector[Any], records: int = 6, endless: bool = False, **more: Any
) -> Pipeline:
    source = Endless() if endless else memory.Source(records=[{"n": n} for n in range(records)])
    return Pipeline(
        "p",
        sources=[Source("s", source)],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(destinations)],
        dead_letters=DeadLetters("journal"),
        delivery="exactly_once",
        **more,
    )


class Endless(sdk.SourceConnector[sdk.Options]):
    """Has nothing to say, and does not end."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()

    async def read(self, n: int) -> list[Record]:
        await trio.sleep_forever()
        raise AssertionError


async def letters_of(store: MemoryStore) -> list[StoredLetter]:
    page = await store.letters.page(EVERYTHING)
    return [await store.letters.letter(summary.id) for summary in reversed(page.letters)]


async def queue(store: MemoryStore) -> None:
    await store.letters.queue("p", {letter.id: list(letter.records) for letter in await letters_of(store)})


async def test_only_those_who_refused_it_get_it_in_one_transaction_each_or_together(autojump_clock: MockClock) -> None:
    store, home, staged, keyed, refuses = MemoryStore(), FakeStorage(), FakeStorage(), FakeStorage(), {2, 4}
    pipeline = made(
        FakeTransactionalDestination(storage=home),
        FakeStagedDestination(storage=staged, refuses=refuses),
        FakeKeyedDestination(storage=keyed, refuses=refuses),
    )
    await run_to_end(pipeline, store)
    refused = [letter.records.keys() for letter in await letters_of(store)]
    refuses.clear()
    await queue(store)
    outcome = await run_to_end(pipeline, store)

    assert refused == [{"d1", "d2"}, {"d1", "d2"}]
    assert outcome.status is Status.COMPLETED, outcome.error
    assert home.visible == [0, 1, 2, 3, 4, 5]
    assert staged.visible == [0, 1, 3, 5, 2, 4]
    assert sorted(keyed.by_key.values()) == [0, 1, 2, 3, 4, 5]
    assert await letters_of(store) == []


async def test_refused_again_it_is_the_same_letter_with_one_more_attempt(autojump_clock: MockClock) -> None:
    store, storage = MemoryStore(), FakeStorage()
    pipeline = made(FakeStagedDestination(storage=storage, refuses={2}))
    for _ in range(3):
        outcome = await run_to_end(pipeline, store)
        await queue(store)
    (letter,) = await letters_of(store)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert letter.attempts == 3
    assert [refusal.attempt for refusal in letter.history] == [1, 2, 3]
    assert storage.visible == [0, 1, 3, 4, 5]


@processor(state=True)
def counted(record: Record, state: State) -> Record:
    if record.payload["n"] == 3 and state.get("count", 0) == 3:
        raise RecordRefused("not before all others")
    state.put("count", state.get("count", 0) + 1)
    return record


async def test_i6_the_state_of_processors_counts_it_with_its_delivery(autojump_clock: MockClock) -> None:
    store, storage = MemoryStore(), FakeStorage()
    pipeline = made(FakeStagedDestination(storage=storage), processors=[counted])
    await run_to_end(pipeline, store)
    before = dict(await (await store.claim("p")).scan())
    await queue(store)
    await run_to_end(pipeline, store)

    assert before == {b"counted\0count": b"\x05"}
    assert dict(await (await store.claim("p")).scan()) == {b"counted\0count": b"\x06"}
    assert storage.visible == [0, 1, 2, 4, 5, 3]


async def test_a_pipeline_that_runs_sends_it_at_once(autojump_clock: MockClock) -> None:
    store, storage, refuses = MemoryStore(), FakeStorage(), {2}
    await run_to_end(made(FakeStagedDestination(storage=storage, refuses=refuses)), store)
    refuses.clear()
    supervisor = Supervisor(made(FakeStagedDestination(storage=storage), endless=True), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        await queue(store)
        await trio.sleep(0.1)
        assert storage.visible == [0, 1, 3, 4, 5, 2]
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert await letters_of(store) == []


async def test_more_letters_than_a_transaction_takes(autojump_clock: MockClock) -> None:
    store, storage, refuses = MemoryStore(), FakeStorage(), set(range(40))
    pipeline = made(
        FakeStagedDestination(storage=storage, refuses=refuses),
        records=40,
        transaction=TransactionLimits(max_records=7, min_seconds=0.1),
    )
    await run_to_end(pipeline, store)
    refuses.clear()
    await queue(store)
    outcome = await run_to_end(pipeline, store)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert storage.visible == list(range(40))
    assert _steps(storage.history) == [7, 7, 7, 7, 7, 5]


async def test_a_letter_that_breaks_its_destination_is_named_and_those_before_it_are_delivered(
    autojump_clock: MockClock,
) -> None:
    store, storage, refuses, breaks = MemoryStore(), FakeStorage(), {1, 2, 3, 4}, set[int]()
    pipeline = made(FakeStagedDestination(storage=storage, refuses=refuses, breaks=breaks))
    await run_to_end(pipeline, store)
    refuses.clear()
    breaks.add(3)
    await queue(store)
    outcome = await run_to_end(pipeline, store)
    culprit, last = await letters_of(store)

    assert outcome.status is Status.DEGRADED
    assert outcome.error is not None
    assert f"s (dead letter {culprit.id}) at 'memory:1:3'" in str(outcome.error.suggestion)
    assert storage.visible == [0, 5, 1, 2]
    assert culprit.state is last.state is LetterState.QUEUED


async def test_the_service_queues_it(autojump_clock: MockClock) -> None:
    store, storage, refuses = MemoryStore(), FakeStorage(), {2}
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        await fleet.add(made(FakeStagedDestination(storage=storage, refuses=refuses)))
        fleet.start("p")
        await fleet["p"].ended.wait()
        refuses.clear()
        service = DeadLetterService(store.letters, lambda: {"p": fleet["p"]})
        report = await service.replay(EVERYTHING)
        fleet.start("p")
        await fleet["p"].ended.wait()

    assert (report.queued, report.impossible) == (1, 0)
    assert storage.visible == [0, 1, 3, 4, 5, 2]


async def test_outcomes_come_out_of_a_checkpoint_as_they_went_in(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await run_to_end(made(FakeStagedDestination(storage=FakeStorage(), refuses={2})), store)
    outcomes = [SettledLetter("gone", 7, 1, []), SettledLetter("left", 8, 2, await letters_of(store))]

    assert decode_replays(encode_replays(outcomes)) == outcomes


def _steps(history: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *history], history, strict=False)]
