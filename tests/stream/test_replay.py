"""Dead letters that are sent again: from where they were refused, once, with the key they had, whatever happens."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    Recovery,
    Retention,
    Source,
    processor,
    sdk,
)
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Batch
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter, LetterState, StoredLetter
from conduit_py.testing import Delay, EventLog, Fail, Refuse, ScriptedDestination, ScriptedSource, simulated
from conduit_py.testing.fault_injection import OutageStore, run_with_outage
from conduit_py.testing.simulation import simulate

EVERYTHING = LetterFilter()
KEPT = LetterFilter(state=LetterState.KEPT)
PATIENT = Recovery(delay_seconds=1, retries=5)


class Moody(sdk.DestinationConnector[sdk.Options]):
    """Stores numbers and keys; refuses the numbers that are in `hates` at the moment."""

    def __init__(self, hates: set[int], mode: AckMode = AckMode.WRITE) -> None:
        super().__init__()
        self.hates = hates
        self.mode = mode
        self.stored: list[tuple[str, int, bytes]] = []
        self._unflushed: list[tuple[str, int, bytes]] = []
        self._answers: list[sdk.Answer] = []

    @property
    def acks(self) -> AckMode:  # type: ignore[override]
        return self.mode

    async def open(self) -> None:
        self._answered = trio.Event()

    def fresh(self) -> "Moody":
        return self

    async def write(self, batch: Batch) -> dict[int, str]:
        await trio.lowlevel.checkpoint()
        refused = {}
        for index, record in enumerate(batch):
            number = record.payload["n"]
            given = (batch.source, number, batch.delivery_key(index))
            why = f"row {number}: not today" if number in self.hates else None
            if self.acks is AckMode.LATER:
                self._answers.append(sdk.Answer(batch.id(index), why))
                self._answered.set()
            elif why:
                refused[index] = why
            if not why:
                (self._unflushed if self.acks is AckMode.FLUSH else self.stored).append(given)
        return refused

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()
        self.stored += self._unflushed
        self._unflushed.clear()

    async def answers(self) -> Sequence[sdk.Answer]:
        await self._answered.wait()
        self._answered = trio.Event()
        given = list(self._answers)
        self._answers.clear()
        random.shuffle(given)
        return given

    @property
    def numbers(self) -> list[int]:
        return [number for _, number, _ in self.stored]


def made(
    *destinations: Destination,
    records: int = 6,
    bounded: bool = True,
    processors: Sequence[Any] = (),
    log: EventLog | None = None,
    **more: Any,
) -> Pipeline:
    source = ScriptedSource(name="web", records=records, bounded=bounded, log=log or EventLog())
    letters = more.pop("dead_letters", DeadLetters("journal"))
    return Pipeline(
        "p",
        sources=more.pop("sources", [Source("web", source, batch_size=4)]),
        processors=processors,
        destinations=destinations,
        dead_letters=letters,
        **more,
    )


async def run(pipeline: Pipeline, store: MemoryStore) -> PipelineState:
    return await Supervisor(pipeline, store, recovery=PATIENT).run()


async def letters_of(store: MemoryStore, filter: LetterFilter = EVERYTHING) -> list[StoredLetter]:
    page = await store.letters.page(filter, limit=10_000)
    return [await store.letters.letter(summary.id) for summary in reversed(page.letters)]


async def replay(
    store: MemoryStore, *, to: Callable[[StoredLetter], list[str]] = lambda letter: list(letter.records)
) -> int:
    """Queue every letter that is kept."""
    wanted = {letter.id: to(letter) for letter in await letters_of(store, KEPT)}
    return len(await store.letters.queue("p", wanted))


class TestAtDestinations:
    @pytest.mark.parametrize("mode", AckMode)
    @simulated(seeds=range(10))
    async def test_only_the_one_that_refused_it_gets_it_with_the_key_it_had(self, mode: AckMode) -> None:
        store, lake, mart = MemoryStore(), Moody({2, 5}, mode), Moody(set(), mode)
        pipeline = made(Destination("lake", lake), Destination("mart", mart))
        assert (await run(pipeline, store)).status is Status.COMPLETED
        refused = await letters_of(store)
        lake.hates.clear()
        queued = await replay(store)
        state = await run(pipeline, store)

        assert [(letter.node, letter.error) for letter in refused] == [
            ("lake", "row 2: not today"),
            ("lake", "row 5: not today"),
        ]
        assert queued == 2
        assert state.status is Status.COMPLETED
        assert lake.numbers == [0, 1, 3, 4, 2, 5]
        assert sorted(lake.stored) == sorted(mart.stored)
        assert mart.numbers == list(range(6))
        assert await letters_of(store) == []

    @simulated(seeds=range(10))
    async def test_each_of_two_gets_the_record_as_it_stood_there(self) -> None:
        store = MemoryStore()
        seen: dict[str, list[Any]] = {"lake": [], "mart": []}

        def stamp(name: str) -> Processor:
            def mark(record: Record) -> Record:
                record.payload["for"] = [*record.payload.get("for", []), name]
                return record

            return Processor("stamp", mark)

        class Remembering(Moody):
            name = ""

            async def write(self, batch: Batch) -> dict[int, str]:
                seen[self.name] += [record.payload["for"] for record in batch if record.payload["n"] == 1]
                return await super().write(batch)

        lake, mart = Remembering({1}), Remembering({1})
        lake.name, mart.name = "lake", "mart"
        pipeline = made(
            Destination("lake", lake, processors=[stamp("lake")]), Destination("mart", mart, processors=[stamp("mart")])
        )
        await run(pipeline, store)
        lake.hates.clear()
        mart.hates.clear()
        (letter,) = await letters_of(store)
        await replay(store)
        await run(pipeline, store)

        assert set(letter.records) == {"lake", "mart"}
        assert seen == {"lake": [["lake"]] * 2, "mart": [["mart"]] * 2}
        assert await letters_of(store) == []

    async def test_sent_to_one_of_two_it_stays_a_letter_for_the_other(self, autojump_clock: MockClock) -> None:
        store, lake, mart = MemoryStore(), Moody({1}), Moody({1})
        pipeline = made(Destination("lake", lake), Destination("mart", mart))
        await run(pipeline, store)
        lake.hates.clear()
        mart.hates.clear()
        await replay(store, to=lambda _: ["lake"])
        await run(pipeline, store)
        (left,) = await letters_of(store)
        await replay(store)
        await run(pipeline, store)

        assert list(left.records) == ["mart"]
        assert Counter(lake.numbers) == Counter(mart.numbers) == Counter(range(6))
        assert await letters_of(store) == []

    async def test_refused_again_it_is_the_same_letter_and_no_concern_of_the_nack_window(
        self, autojump_clock: MockClock
    ) -> None:
        store, lake = MemoryStore(), Moody({2})
        window = DeadLetters("journal", window_size=6, window_nack_threshold=1)
        pipeline = made(Destination("lake", lake), dead_letters=window)
        await run(pipeline, store)
        (before,) = await letters_of(store)
        for _ in range(3):
            await replay(store)
            assert (await run(pipeline, store)).status is Status.COMPLETED
        (after,) = await letters_of(store)

        assert after.id == before.id
        assert after.state is LetterState.KEPT
        assert after.attempts == 4
        assert [refusal.attempt for refusal in after.history] == [1, 2, 3, 4]


class TestAtProcessors:
    @simulated(seeds=range(10))
    async def test_it_goes_on_from_there_and_what_came_before_is_not_done_again(self) -> None:
        store, lake, bad = MemoryStore(), Moody(set()), {3}
        met: dict[str, list[int]] = {"first": [], "second": [], "third": []}

        @processor
        def first(record: Record) -> Record:
            met["first"].append(record.payload["n"])
            record.payload["first"] = record.payload.get("first", 0) + 1
            return record

        @processor
        async def second(record: Record) -> Record:
            await trio.sleep(0.01)
            if record.payload["n"] in bad:
                raise RecordRefused("cannot")
            met["second"].append(record.payload["n"])
            return record

        @processor
        def third(record: Record) -> Record:
            met["third"].append(record.payload["first"])
            return record

        pipeline = made(Destination("lake", lake), processors=[first, second, third])
        await run(pipeline, store)
        (letter,) = await letters_of(store)
        bad.clear()
        await replay(store)
        await run(pipeline, store)

        assert letter.node == "second"
        assert met["first"].count(3) == 1
        assert met["second"] == [0, 1, 2, 4, 5, 3]
        assert met["third"] == [1] * 6
        assert lake.numbers == [0, 1, 2, 4, 5, 3]
        assert await letters_of(store) == []

    @simulated(seeds=range(20))
    async def test_a_processor_never_works_on_two_batches_at_once(self) -> None:
        """With records that flow and letters that come in beside them, at the begin and in the middle of a chain."""
        store, lake, bad = MemoryStore(), Moody(set()), set(range(0, 40, 3))
        inside = Counter[str]()
        most = Counter[str]()

        def careful(name: str, refuses: bool) -> Processor:
            async def work(batch: Sequence[Record]) -> list[Any]:
                inside[name] += 1
                most[name] = max(most[name], inside[name])
                await trio.sleep(0.01)
                inside[name] -= 1
                return [RecordRefused("no") if refuses and record.payload["n"] in bad else record for record in batch]

            return Processor(name, processor(batch=True)(work))

        chain = [careful("a", False), careful("b", True), careful("c", False)]
        pipeline = made(Destination("lake", lake), records=60, bounded=False, processors=chain)
        supervisor = Supervisor(pipeline, store, recovery=PATIENT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(0.03)
            for _ in range(100):
                if len(lake.stored) == 60:
                    break
                bad.clear()
                await replay(store)
                await trio.sleep(0.02)
            supervisor.stop()

        assert max(most.values()) == 1
        assert sorted(lake.numbers) == list(range(60))
        assert await letters_of(store) == []

    @simulated(seeds=range(10))
    async def test_with_several_workers(self) -> None:
        store, lake, bad = MemoryStore(), Moody(set()), {1, 4, 5}

        async def check(record: Record) -> Record:
            await trio.sleep(random.random() / 100)
            if record.payload["n"] in bad:
                raise RecordRefused("no")
            return record

        pipeline = made(Destination("lake", lake), processors=[Processor("check", check, workers=3)])
        await run(pipeline, store)
        bad.clear()
        await replay(store)
        await run(pipeline, store)

        assert lake.numbers == [0, 2, 3, 1, 4, 5]
        assert await letters_of(store) == []

    async def test_a_record_that_a_processor_filters_is_delivered(self, autojump_clock: MockClock) -> None:
        store, lake, verdict = MemoryStore(), Moody(set()), ["refuse"]

        @processor
        def judge(record: Record) -> Record | None:
            if record.payload["n"] == 2:
                if verdict[0] == "refuse":
                    raise RecordRefused("no")
                return None
            return record

        pipeline = made(Destination("lake", lake), processors=[judge])
        await run(pipeline, store)
        verdict[0] = "filter"
        await replay(store)
        await run(pipeline, store)

        assert lake.numbers == [0, 1, 3, 4, 5]
        assert await letters_of(store) == []


class TestPieces:
    """Records that are split: each piece is a letter of its own."""

    @staticmethod
    def in_three(record: Record) -> list[Record]:
        number = record.payload["n"]
        return [Record.of({"n": 10 * number + part}) for part in range(3)]

    @simulated(seeds=range(10))
    async def test_only_the_refused_piece_is_sent_again(self) -> None:
        store, lake = MemoryStore(), Moody({11, 20})
        pipeline = made(Destination("lake", lake), records=3, processors=[Processor("split", self.in_three)])
        await run(pipeline, store)
        letters = await letters_of(store)
        lake.hates.clear()
        await replay(store)
        await run(pipeline, store)

        assert [(letter.position, letter.piece) for letter in letters] == [(b"1", (1,)), (b"2", (0,))]
        assert lake.numbers == [0, 1, 2, 10, 12, 21, 22, 11, 20]
        assert len({key for _, _, key in lake.stored}) == 9
        assert await letters_of(store) == []

    @simulated(seeds=range(10))
    async def test_a_letter_that_splits_on_its_way_leaves_only_the_pieces_that_were_refused(self) -> None:
        store, lake, bad = MemoryStore(), Moody({11}), [True]

        def split(record: Record) -> list[Record]:
            if record.payload["n"] == 1 and bad[0]:
                raise RecordRefused("no")
            return self.in_three(record)

        pipeline = made(Destination("lake", lake), records=3, processors=[Processor("split", split)])
        await run(pipeline, store)
        (whole,) = await letters_of(store)
        bad[0] = False
        await replay(store)
        await run(pipeline, store)
        (piece,) = await letters_of(store)
        lake.hates.clear()
        await replay(store)
        await run(pipeline, store)

        assert (whole.node, whole.piece) == ("split", ())
        assert (piece.node, piece.piece, piece.attempts) == ("lake", (1,), 2)
        assert Counter(lake.numbers) == Counter([0, 1, 2, 10, 11, 12, 20, 21, 22])
        assert await letters_of(store) == []


class TestBehindTheSource:
    async def test_what_the_source_could_not_read_enters_behind_it_once_it_was_edited(
        self, autojump_clock: MockClock
    ) -> None:
        store, lake = MemoryStore(), Moody(set())
        source = ScriptedSource(name="web", records=4, log=EventLog(), script={1: Refuse("not JSON")})
        doubled = Processor("double", lambda record: Record.of({"n": 2 * record.payload["n"]}))
        sources = [Source("web", source, processors=[doubled])]
        pipeline = made(Destination("lake", lake), sources=sources)
        await run(pipeline, store)
        (letter,) = await letters_of(store)
        await store.letters.edit(letter.id, {"web": Record.of({"n": 50}, position=letter.position)})
        await replay(store)
        await run(pipeline, store)

        assert letter.node == "web"
        assert lake.numbers == [0, 4, 6, 100]
        assert await letters_of(store) == []


class TestTwoSources:
    @pytest.mark.parametrize("mode", AckMode)
    @simulated(seeds=range(10))
    async def test_letters_keep_the_source_they_came_from(self, mode: AckMode) -> None:
        store, lake = MemoryStore(), Moody({1, 2}, mode)
        sources = [
            Source(name, ScriptedSource(name=name, records=4, log=EventLog()), batch_size=2) for name in ("web", "shop")
        ]
        pipeline = made(Destination("lake", lake), sources=sources)
        await run(pipeline, store)
        lake.hates.clear()
        await replay(store)
        await run(pipeline, store)

        assert sorted((source, number) for source, number, _ in lake.stored) == sorted(
            (source, number) for source in ("web", "shop") for number in range(4)
        )
        assert len({key for _, _, key in lake.stored}) == 8
        assert await letters_of(store) == []


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
        pipeline = made(Destination("lake", lake), records=1500)
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

        async def replayed() -> None:
            await replay(store)
            await run(self.pipeline(log, {}), store)

        struck = await run_with_outage(replayed, log=log, moment=moment)
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
