"""Replay of dead letters over the life of a run: start, stop, failure, crash."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import trio
from replay_pipelines import EVERYTHING, Moody, letters_of, made, replay, run
from trio.testing import MockClock

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    Retention,
    Source,
    processor,
)
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterState
from conduit_py.testing import Delay, EventLog, Fail, Refuse, ScriptedDestination, ScriptedSource, simulated
from conduit_py.testing.crash import OutageStore, run_with_outage
from conduit_py.testing.simulation import simulate


class TestLifeOfARun:
    @pytest.mark.parametrize("mode", AckMode)
    @simulated(seeds=range(10))
    async def test_a_running_pipeline_takes_them_at_once(self, mode: AckMode) -> None:
        store, lake = MemoryStore(), Moody({1, 3}, mode)
        supervisor = Supervisor(made(Destination("lake", lake), bounded=False), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1)
            lake.hates.clear()
            await replay(store)
            asked_again = await replay(store)
            await trio.sleep(1)
            delivered = list(lake.numbers)
            supervisor.stop()

        assert asked_again == 0
        assert sorted(delivered) == list(range(6))
        assert await letters_of(store) == []

    @simulated(seeds=range(10))
    async def test_a_run_completes_only_when_its_queued_letters_are_settled(self) -> None:
        log, store, lake = EventLog(), MemoryStore(), Moody({1})
        slow = ScriptedDestination(name="slow", log=log, script={1: Delay(100)})
        await run(made(Destination("lake", lake), log=log), store)
        lake.hates.clear()
        await replay(store)
        started = trio.current_time()
        state = await run(made(Destination("lake", slow), log=log), store)

        assert state.status is Status.COMPLETED
        assert trio.current_time() - started >= 100
        assert log.numbers("slow") == [1]
        assert await letters_of(store) == []

    @simulated(seeds=range(20))
    async def test_a_graceful_stop_settles_what_is_on_its_way_or_leaves_it_queued(self) -> None:
        store, lake = MemoryStore(), Moody(set(range(30)))
        pipeline = made(Destination("lake", lake), records=30, bounded=False)
        supervisor = Supervisor(pipeline, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1)
            lake.hates.clear()
            nursery.start_soon(replay, store)
            for _ in range(random.randrange(60)):
                await trio.lowlevel.checkpoint()
            supervisor.stop()
        left = await letters_of(store)
        await replay(store)
        stored_before = set(lake.numbers)
        again = Supervisor(pipeline, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.run)
            await trio.sleep(1)
            again.stop()

        assert not stored_before & {int(letter.position) for letter in left}
        assert Counter(lake.numbers) == Counter(range(30))
        assert await letters_of(store) == []

    async def test_a_forceful_stop_leaves_them_queued(self, autojump_clock: MockClock) -> None:
        log, store, lake = EventLog(), MemoryStore(), Moody({1})
        await run(made(Destination("lake", lake), log=log), store)
        await replay(store)
        stuck = ScriptedDestination(name="stuck", log=log, script={1: Delay(10_000)})
        supervisor = Supervisor(made(Destination("lake", stuck), log=log), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1)
            supervisor.force()

        (letter,) = await letters_of(store)
        assert (letter.state, letter.attempts) == (LetterState.QUEUED, 1)

    async def test_an_error_of_the_destination_is_no_refusal_and_the_letter_is_sent_again(
        self, autojump_clock: MockClock
    ) -> None:
        log, store, lake = EventLog(), MemoryStore(), Moody({1})
        await run(made(Destination("lake", lake), log=log), store)
        await replay(store)
        failing = ScriptedDestination(name="failing", log=log, script={1: Fail("link down", times=2)})
        state = await run(made(Destination("lake", failing), log=log), store)

        assert state.status is Status.COMPLETED
        assert log.numbers("failing") == [1]
        assert await letters_of(store) == []

    async def test_a_letter_whose_node_is_gone_says_so_and_is_kept(self, autojump_clock: MockClock) -> None:
        store, lake = MemoryStore(), Moody({1})
        await run(made(Destination("lake", lake)), store)
        await replay(store)
        state = await run(made(Destination("pond", Moody(set()))), store)

        (letter,) = await letters_of(store)
        assert state.status is Status.COMPLETED
        assert letter.state is LetterState.KEPT
        assert letter.error == "not sent again: lake is no longer in the pipeline"

    async def test_letters_by_the_hundred_travel_together(self, autojump_clock: MockClock) -> None:
        store, lake = MemoryStore(), Moody(set(range(1500)))
        pipeline = made(Destination("lake", lake), records=1500, dead_letters=DeadLetters("journal", window_size=0))
        await run(pipeline, store)
        lake.hates.clear()
        await replay(store)
        supervisor = Supervisor(pipeline, store)
        await supervisor.run()
        meter = next(meter for meter in supervisor.progress().nodes if meter.node == "lake")

        assert lake.numbers == list(range(1500))
        assert meter.batches < 50
        assert (await store.letters.page(EVERYTHING)).total == 0


class TestStoring:
    async def test_a_record_that_cannot_be_kept_stops_the_pipeline_and_those_before_it_are_safe(
        self, autojump_clock: MockClock
    ) -> None:
        log, store = EventLog(), MemoryStore()

        @processor
        def spoil(record: Record) -> Record:
            if record.payload["n"] == 3:
                record.payload["what"] = object()
            raise RecordRefused("no")

        state = await run(made(Destination("lake", Moody(set())), processors=[spoil], log=log), store)

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "dead_letter.failed"
        assert "payload.after.what is a builtins.object" in state.error.message
        assert [int(letter.position) for letter in await letters_of(store)] == [0, 1, 2]
        assert [int(position) for position in log.acked["web"]] == [0, 1, 2]

    async def test_a_store_that_fails_keeps_the_message_from_being_acked(self, autojump_clock: MockClock) -> None:
        log, store = EventLog(), MemoryStore(fail_after=4)
        state = await run(made(Destination("lake", Moody({0})), log=log, records=1), store)

        assert state.status is Status.DEGRADED
        assert log.acked["web"] == []

    async def test_old_letters_are_forgotten_when_the_pipeline_starts(self, autojump_clock: MockClock) -> None:
        store, lake = MemoryStore(), Moody({1, 2, 3})
        await run(made(Destination("lake", lake)), store)
        keep_one = DeadLetters("journal", retention=Retention(count_max=1))
        await run(made(Destination("lake", lake), dead_letters=keep_one), store)
        by_number = [int(letter.position) for letter in await letters_of(store)]
        keep_no_time = DeadLetters("journal", retention=Retention(age=timedelta(microseconds=1)))
        await run(made(Destination("lake", lake), dead_letters=keep_no_time), store)

        assert by_number == [3]
        assert await letters_of(store) == []


class TestCrash:
    """Invariant 11 for letters: a power cut at any moment loses none, and delivers none under another key."""

    @staticmethod
    def pipeline(log: EventLog, refused: dict[int, Any]) -> Pipeline:
        halves = Processor("halves", lambda record: [record, record.copy()] if record.payload["n"] == 2 else record)
        return made(
            Destination("lake", ScriptedDestination(log=log, name="lake", script=refused, acks=AckMode.FLUSH)),
            Destination("mart", ScriptedDestination(log=log, name="mart")),
            processors=[halves],
            log=log,
            records=4,
        )

    async def cut(self, moment: int) -> tuple[EventLog, OutageStore, bool]:
        log = EventLog()
        store = OutageStore(log)
        refused = {number: Refuse("no") for number in (1, 2)}
        await run(self.pipeline(log, refused), store)
        assert len(await letters_of(store)) == 3

        async def send_all_again() -> None:
            await replay(store)
            await run(self.pipeline(log, {}), store)

        struck = await run_with_outage(send_all_again, log=log, moment=moment)
        await replay(store)
        assert (await run(self.pipeline(log, {}), store)).status is Status.COMPLETED
        return log, store, struck

    def test_an_outage_at_any_moment_of_a_replay(self) -> None:
        struck, moment = True, 0
        while struck:
            log, store, struck = simulate(self.cut, moment, seed=moment)
            keys = {(delivery.number, delivery.key) for delivery in log.stored["lake"]}
            assert Counter(number for number, _ in keys) == Counter({0: 1, 1: 1, 2: 2, 3: 1})
            assert len(log.stored["mart"]) == 5
            assert simulate(letters_of, store) == []
            moment += 1
        assert moment > 5

    @simulated(seeds=range(15))
    async def test_an_outage_while_letters_are_stored_doubles_none(self, seed: int) -> None:
        log = EventLog()
        store = OutageStore(log)
        refused = {number: Refuse("no") for number in (1, 2)}
        await run_with_outage(run, self.pipeline(log, refused), store, log=log, moment=seed)
        await run(self.pipeline(log, refused), store)

        assert [(letter.position, letter.piece) for letter in await letters_of(store)] == [
            (b"1", ()),
            (b"2", (0,)),
            (b"2", (1,)),
        ]

    @simulated(seeds=range(10))
    async def test_when_a_delivery_cannot_be_noted_it_is_repeated_with_the_same_key(self) -> None:
        store, lake = MemoryStore(), Moody({1})
        pipeline = made(Destination("lake", lake))
        await run(pipeline, store)
        lake.hates.clear()
        await replay(store)
        store.fail_after = store.writes + 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, pipeline, store)
            await trio.sleep(0.5)
            store.fail_after = None

        assert await letters_of(store) == []
        assert set(lake.numbers) == set(range(6))
        assert len({key for _, _, key in lake.stored}) == 6


@simulated(seeds=range(12), seconds=100_000)
async def test_whatever_is_refused_and_replayed_when_everything_is_delivered_once(seed: int) -> None:
    """At random: two sources, chains before and after a fan-out, refusals anywhere, replays at any time."""
    rng = random.Random(seed)
    store = MemoryStore()
    moods: list[set[int]] = []

    def moody(name: str) -> Processor:
        hates = set(rng.sample(range(20), 4))
        moods.append(hates)

        async def work(record: Record) -> Record:
            await trio.sleep(rng.random() / 100)
            if record.payload["n"] in hates:
                raise RecordRefused(f"{name} says no")
            record.payload["path"] = [*record.payload.get("path", []), name]
            return record

        return Processor(name, work, workers=rng.choice([1, 1, 3]))

    ends = [Moody(set(rng.sample(range(20), 4)), rng.choice(list(AckMode))) for _ in range(3)]
    moods += [end.hates for end in ends]
    sources = [
        Source(
            name,
            ScriptedSource(name=name, records=20, bounded=False, log=EventLog()),
            processors=[moody("own")] if rng.random() < 0.5 else [],
            batch_size=rng.choice([1, 3, 8]),
        )
        for name in ("web", "shop")
    ]
    destinations = [
        Destination(f"end-{index}", end, processors=[moody("last")] if rng.random() < 0.5 else [])
        for index, end in enumerate(ends)
    ]
    pipeline = made(*destinations, sources=sources, processors=[moody(f"step-{n}") for n in range(rng.randrange(3))])
    supervisor = Supervisor(pipeline, store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        for _ in range(30):
            await trio.sleep(rng.random() / 10)
            if rng.random() < 0.3:
                rng.choice(moods).clear()
            await replay(store, to=lambda letter: rng.sample(list(letter.records), rng.randint(1, len(letter.records))))
        for mood in moods:
            mood.clear()
        for _ in range(8):
            await trio.sleep(1)
            await replay(store)
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert await letters_of(store) == []
    for end in ends:
        wanted = Counter((name, number) for name in ("web", "shop") for number in range(20))
        assert Counter((source, number) for source, number, _ in end.stored) == wanted
        assert len({key for _, _, key in end.stored}) == 40
