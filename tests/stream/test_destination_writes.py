"""Destinations: refusals, routing by `when`, retries of a write, and what breaks their contract."""

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Record, Retry, Source, sdk
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Batch
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.stream.meter import Meter
from conduit_py.testing import (
    EventLog,
    Fail,
    Refuse,
    RefuseOutside,
    ScriptedDestination,
    ScriptedSource,
    number_of,
    position_of,
    simulated,
)

with pytest.raises(ZeroDivisionError) as division:
    divmod(1, 0)
NO_QUOTIENT = f"ZeroDivisionError: {division.value}"
"""What this Python says, which differs between versions."""


class World:
    """Six records in batches of three, the letters kept, and the meters of the run."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.letters: list[DeadLetter] = []

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    async def run(
        self, *destinations: Destination, rng: random.Random | None = None, records: int = 6, batch_size: int = 3
    ) -> PipelineState:
        pipeline = Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=records, log=self.log), batch_size=batch_size)],
            destinations=destinations,
            dead_letters=DeadLetters(self.keep),
        )
        supervisor = Supervisor(pipeline, MemoryStore(), rng=rng)
        state = await supervisor.run()
        self.meters: dict[str, Meter] = {meter.node: meter for meter in supervisor.progress().nodes}
        if state.status is Status.COMPLETED:
            assert self.log.acked["source"] == [position_of(n) for n in range(records)]
        self.log.check()
        return state

    def scripted(self, id: str = "lake", **settings: Any) -> Destination:
        own = {name: settings.pop(name) for name in ("when", "retry", "processors") if name in settings}
        return Destination(id, ScriptedDestination(name=id, log=self.log, **settings), **own)


class Answering(sdk.DestinationConnector[sdk.Options]):
    """Returns or raises what `answer` gives for each batch, and keeps the numbers of every batch."""

    def giving(self, *answers: Any) -> "Answering":
        self.answers_left = list(answers)
        self.batches: list[tuple[float, list[int | None]]] = []
        return self

    async def write(self, batch: Batch) -> Any:
        self.batches.append((trio.current_time(), [number_of(record) for record in batch]))
        answer = self.answers_left.pop(0) if self.answers_left else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fresh(self) -> "Answering":
        return self


class TestRefusals:
    """A destination may take some records of a batch and refuse others, each with a reason."""

    @pytest.mark.parametrize("acks", list(AckMode))
    async def test_only_the_refused_become_dead_letters(self, acks: AckMode, autojump_clock: MockClock) -> None:
        world = World()
        script: dict[int, Any] = {1: Refuse("too long"), 2: Refuse("too short"), 5: Refuse("too late")}
        state = await world.run(world.scripted(acks=acks, script=script))

        assert state.status is Status.COMPLETED
        assert world.log.numbers("lake") == [0, 3, 4]
        assert [(each.message.sequence, each.node, each.error, each.position) for each in world.letters] == [
            (1, "lake", "too long", b"1"),
            (2, "lake", "too short", b"2"),
            (5, "lake", "too late", b"5"),
        ]
        assert [each.record.payload["n"] for each in world.letters] == [1, 2, 5]
        assert world.meters["lake"].refused == 3

    async def test_reasons_may_be_errors(self, autojump_clock: MockClock) -> None:
        world = World()
        reasons = {0: RecordRefused("our own"), 2: ValueError("theirs"), 1: "text"}
        await world.run(Destination("lake", Answering().giving(reasons)))

        assert [each.error for each in world.letters] == ["our own", "text", "ValueError: theirs"]

    async def test_a_write_that_raises_a_refusal_refuses_the_batch(self, autojump_clock: MockClock) -> None:
        world = World()
        state = await world.run(
            Destination("lake", Answering().giving(None, RecordRefused("no such table")), retry=Retry(attempts=5))
        )

        assert state.status is Status.COMPLETED
        assert [(each.message.sequence, each.error) for each in world.letters] == [
            (n, "no such table") for n in (3, 4, 5)
        ]
        assert world.meters["lake"].retries == 0

    @pytest.mark.parametrize(
        ("answer", "rule"),
        [
            ({3: "x"}, "write() refused record 3 of a batch of 3"),
            ({-1: "x"}, "write() refused record -1 of a batch of 3"),
            ({"0": "x"}, "write() refused record '0' of a batch of 3"),
            ([0], "write() must return None or a mapping of index to reason, not list"),
            (True, "write() must return None or a mapping of index to reason, not bool"),
        ],
    )
    async def test_an_answer_that_makes_no_sense_ends_the_run(
        self, answer: object, rule: str, autojump_clock: MockClock
    ) -> None:
        world = World()
        state = await world.run(Destination("lake", Answering().giving(answer), retry=Retry(attempts=5)))

        assert state.error is not None
        assert (state.error.code, state.error.message, state.error.node) == ("contract.broken", f"lake: {rule}", "lake")
        assert world.log.acked["source"] == []
        assert world.letters == []

    async def test_a_refusal_outside_of_the_batch_ends_the_run(self, autojump_clock: MockClock) -> None:
        world = World()
        state = await world.run(world.scripted(script={4: RefuseOutside()}))

        assert state.error is not None
        assert state.error.message == "lake: write() refused record 3 of a batch of 3"

    async def test_a_destination_that_reorders_its_batch_harms_neither_others_nor_its_refusals(
        self, autojump_clock: MockClock
    ) -> None:
        class Sorting(sdk.DestinationConnector[sdk.Options]):
            async def write(self, batch: Batch) -> dict[int, str]:
                batch.records.reverse()
                batch.records.pop()
                return {0: "refused"}

        world = World()
        state = await world.run(Destination("sorting", Sorting()), world.scripted(), records=3)

        assert state.status is Status.COMPLETED
        assert world.log.numbers("lake") == [0, 1, 2]
        assert [number_of(letter.record) for letter in world.letters] == [0]


class TestWhen:
    """`when` sends a destination only some records; for the others it has no say."""

    @simulated(seeds=range(10))
    async def test_every_record_goes_where_it_belongs(self, seed: int) -> None:
        world = World()
        state = await world.run(
            world.scripted("odd", when=lambda record: record.payload["n"] % 2 == 1, acks=AckMode.LATER),
            world.scripted("big", when=lambda record: record.payload["n"] > 3, acks=AckMode.FLUSH),
            world.scripted("none", when=lambda record: False, acks=AckMode.LATER),
        )

        assert state.status is Status.COMPLETED
        assert sorted(world.log.numbers("odd"), key=str) == [1, 3, 5]
        assert world.log.numbers("big") == [4, 5]
        assert world.log.numbers("none") == []
        assert [world.meters[node].filtered for node in ("odd", "big", "none")] == [3, 4, 6]
        assert world.log.did("write", "none") == []

    async def test_one_that_raises_refuses_the_record_once(self, autojump_clock: MockClock) -> None:
        world = World()
        state = await world.run(
            world.scripted("a", when=lambda record: 1 // (record.payload["n"] - 2) < 9), world.scripted("b")
        )

        assert state.status is Status.COMPLETED
        [letter] = world.letters
        assert (letter.message.sequence, letter.node) == (2, "a")
        assert letter.error == NO_QUOTIENT
        assert world.log.numbers("a") == [0, 1, 3, 4, 5]
        assert world.log.numbers("b") == [0, 1, 2, 3, 4, 5]


class TestWhenWithProcessors:
    """The processors of a destination see only the records that its `when` lets through, and `when` sees them first."""

    @simulated(seeds=range(5))
    async def test_the_processors_see_only_what_the_destination_wants(self, seed: int) -> None:
        seen: list[int] = []

        def double(record: Record) -> Record:
            assert record.payload["n"] % 2 == 1, "an even record"
            seen.append(record.payload["n"])
            record.payload["n"] *= 2
            return record

        world = World()
        state = await world.run(
            world.scripted("odd", when=lambda record: record.payload["n"] % 2 == 1, processors=[double]),
            world.scripted("every"),
        )

        assert state.status is Status.COMPLETED
        assert world.letters == []
        assert seen == [1, 3, 5]
        assert [delivery.record.payload["n"] for delivery in world.log.stored["odd"]] == [2, 6, 10]
        assert world.log.numbers("every") == [0, 1, 2, 3, 4, 5]
        assert (world.meters["odd:when"].filtered, world.meters["odd"].filtered) == (3, 0)

    async def test_one_that_raises_refuses_the_record_before_they_see_it(self, autojump_clock: MockClock) -> None:
        seen: list[int] = []

        def look(record: Record) -> Record:
            seen.append(record.payload["n"])
            return record

        world = World()
        state = await world.run(
            world.scripted("a", when=lambda record: 1 // (record.payload["n"] - 2) < 9, processors=[look])
        )

        assert state.status is Status.COMPLETED
        [letter] = world.letters
        assert (letter.message.sequence, letter.node) == (2, "a:when")
        assert letter.error == NO_QUOTIENT
        assert seen == [0, 1, 3, 4, 5]

    async def test_a_replayed_letter_of_a_processor_is_not_asked_for_again(self, autojump_clock: MockClock) -> None:
        """The processor may have changed its record before it refused it, so the condition could be false by now."""
        asked: list[int] = []

        def wanted(record: Record) -> bool:
            asked.append(record.payload["n"])
            return bool(record.payload["n"] >= 0)

        def negate(record: Record) -> Record:
            first = record.payload["n"] >= 0
            record.payload["n"] = -abs(record.payload["n"])
            if first and record.payload["n"] == -2:
                raise ValueError("not now")
            return record

        log, store = EventLog(), MemoryStore()
        lake = Destination("lake", ScriptedDestination(name="lake", log=log), when=wanted, processors=[negate])
        pipeline = Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=3, log=log))],
            destinations=[lake],
            dead_letters=DeadLetters.keep(),
        )
        await Supervisor(pipeline, store).run()
        [letter] = (await store.letters.page(LetterFilter())).letters
        await store.letters.queue("p", {letter.id: letter.nodes})
        state = await Supervisor(pipeline, store).run()

        assert state.status is Status.COMPLETED
        assert asked == [0, 1, 2]
        assert [delivery.record.payload["n"] for delivery in log.stored["lake"]] == [0, -1, -2]


class TestRetries:
    """A failed write is tried again as the policy says, with everything that has no answer yet."""

    POLICY = Retry(attempts=3, delay_seconds=4, delay_max_seconds=5, factor=2)

    async def test_the_whole_batch_is_written_again_after_growing_delays(self, autojump_clock: MockClock) -> None:
        world, rng = World(), random.Random(3)
        first, second = self.POLICY.delay(1, rng), self.POLICY.delay(2, rng)
        lake = Answering().giving(None, OSError("gone"), OSError("still gone"), None)
        state = await world.run(Destination("lake", lake, retry=self.POLICY), rng=random.Random(3))

        assert state.status is Status.COMPLETED
        assert lake.batches == [(0, [0, 1, 2]), (0, [3, 4, 5]), (first, [3, 4, 5]), (first + second, [3, 4, 5])]
        assert 2 <= first <= 4
        assert 2.5 <= second <= 5
        assert world.meters["lake"].retries == 2
        assert world.meters["lake"].records == 6

    async def test_when_the_policy_is_exhausted_the_run_ends_and_nothing_is_acked(
        self, autojump_clock: MockClock
    ) -> None:
        world = World()
        lake = Answering().giving(*[OSError("gone")] * 9)
        state = await world.run(Destination("lake", lake, retry=self.POLICY))

        assert state.error is not None
        assert (state.error.code, state.error.message) == ("node.failed", "lake: write failed: OSError: gone")
        assert len(lake.batches) == 3
        assert world.log.acked["source"] == []
        assert world.letters == []

    async def test_a_fatal_error_is_not_tried_again(self, autojump_clock: MockClock) -> None:
        world = World()
        lake = Answering().giving(FatalError("the account is closed"))
        state = await world.run(Destination("lake", lake, retry=self.POLICY))

        assert state.error is not None
        assert (state.error.message, state.error.node) == ("the account is closed", "lake")
        assert len(lake.batches) == 1

    async def test_a_refusal_at_a_later_attempt_says_which(self, autojump_clock: MockClock) -> None:
        world = World()
        lake = Answering().giving(OSError("gone"), {1: "no"})
        await world.run(Destination("lake", lake, retry=self.POLICY))

        [letter] = world.letters
        assert (letter.message.sequence, letter.failures[0].attempt) == (1, 2)

    @simulated(seeds=range(10))
    async def test_what_was_answered_before_the_write_failed_is_not_written_again(self, seed: int) -> None:
        world = World()
        lake = world.scripted(
            acks=AckMode.LATER, answers_early=True, script={2: Fail("gone", times=2)}, retry=self.POLICY
        )
        state = await world.run(lake, batch_size=6)

        assert state.status is Status.COMPLETED
        assert world.log.numbers("lake") == [0, 1, 2, 3, 4, 5]
        assert [each.number for each in world.log.received["lake"]] == [0, 1, 2, 2, 2, 3, 4, 5]

    async def test_when_everything_was_answered_nothing_is_written_again(self, autojump_clock: MockClock) -> None:
        class Hasty(ScriptedDestination):
            async def write(self, batch: Batch) -> Any:
                await super().write(batch)
                # The answers arrive before the connection breaks.
                await trio.sleep(1)
                raise OSError("broken after the fact")

        world = World()
        hasty = Hasty(name="lake", log=world.log, acks=AckMode.LATER)
        state = await world.run(Destination("lake", hasty, retry=self.POLICY))

        assert state.status is Status.COMPLETED
        assert [each.number for each in world.log.received["lake"]] == [0, 1, 2, 3, 4, 5]
        assert world.meters["lake"].records == 6


async def test_a_destination_is_given_records_with_the_values_that_the_source_had(autojump_clock: MockClock) -> None:
    kept: list[Record] = []

    class Keeping(sdk.DestinationConnector[sdk.Options]):
        async def write(self, batch: Batch) -> None:
            kept.extend(batch)

    given = [Record.of({"n": 10**40, "raw": b"\x00\xff"}, key=b"k"), Record.of(None), Record.of({}), Record.of(b"")]
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=given))],
        destinations=[Destination("keeping", Keeping())],
    )
    await Supervisor(pipeline, MemoryStore()).run()

    assert [record.payload.after for record in kept] == [{"n": 10**40, "raw": b"\x00\xff"}, None, {}, b""]
    assert [record.key for record in kept] == [b"k", None, None, None]
