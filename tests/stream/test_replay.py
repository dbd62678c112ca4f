"""Replay of dead letters: each enters where it was refused, once, with the key it had."""

import random
from collections import Counter
from typing import Any

import pytest
import trio
from replay_pipelines import PATIENT, Moody, letters_of, made, replay, run
from trio.testing import MockClock

from conduit_py import (
    DeadLetters,
    Destination,
    Processor,
    Record,
    Source,
    processor,
)
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Batch
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterState
from conduit_py.testing import EventLog, Refuse, ScriptedSource, simulated


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
            async def work(batch: Batch) -> list[Any]:
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
