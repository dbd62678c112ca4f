"""How many refusals a source may have: exact counts, per source, whatever the batches."""

from typing import Any

import pytest
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Recovery, Source
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Delay, EventLog, OnAnswer, Refuse, ScriptedDestination, ScriptedSource, simulated

RESTARTS = Recovery(delay_seconds=1, retries=5)


class World:
    """Sources whose destination refuses some numbers, and the letters kept of each source."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.letters: list[tuple[str, int]] = []

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append((letter.message.source, letter.message.sequence))

    def pipeline(
        self,
        *refused: int,
        size: int | None,
        threshold: int,
        records: int = 40,
        batch_size: int = 7,
        sources: tuple[str, ...] = ("source",),
        processors: Any = (),
        acks: AckMode = AckMode.WRITE,
    ) -> Pipeline:
        late = {n: OnAnswer(Delay((n * 7) % 5)) for n in range(records)} if acks is AckMode.LATER else {}
        script: dict[int, Any] = late | {n: (Refuse(f"no {n}"), late.get(n, Delay(0))) for n in refused}
        return Pipeline(
            "p",
            sources=[
                Source(id, ScriptedSource(name=id, records=records, log=self.log), batch_size=batch_size)
                for id in sources
            ],
            processors=processors,
            destinations=[
                Destination("lake", ScriptedDestination(name="lake", log=self.log, script=script, acks=acks))
            ],
            dead_letters=DeadLetters(self.keep, window_size=size, window_nack_threshold=threshold),
        )

    def acked(self, source: str = "source") -> list[int]:
        return [int(position) for position in self.log.acked[source]]


@pytest.mark.parametrize("acks", list(AckMode))
@pytest.mark.parametrize("batch_size", [1, 3, 40])
async def test_the_letters_before_the_one_too_many_are_kept_and_acked_and_it_is_neither(
    batch_size: int, acks: AckMode, autojump_clock: MockClock
) -> None:
    world = World()
    # Of the last 10 outcomes at most 2 may be refusals: 5, 14 and 15 are fine (14 is the tenth after 5), 23 is not.
    pipeline = world.pipeline(5, 14, 15, 23, 30, size=10, threshold=2, batch_size=batch_size, acks=acks)
    state = await Supervisor(pipeline, MemoryStore(), recovery=RESTARTS).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.code == "dead_letter.not_allowed"
    assert state.error.message == "too many records were refused; lake refused one more: no 23"
    assert state.error.node == "lake"
    assert world.letters == [("source", n) for n in (5, 14, 15)]
    assert world.acked() == list(range(23))
    assert len(world.log.did("open", "source")) == 1


@pytest.mark.parametrize("batch_size", [1, 3, 40])
async def test_as_many_as_the_window_allows_pass_for_ever(batch_size: int, autojump_clock: MockClock) -> None:
    world = World()
    refused = [n for n in range(40) if n % 5 in (0, 1)]
    pipeline = world.pipeline(*refused, size=5, threshold=2, batch_size=batch_size)
    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert [number for _, number in world.letters] == refused
    assert world.acked() == list(range(40))


async def test_filtered_records_are_outcomes_too(autojump_clock: MockClock) -> None:
    world = World()

    def keep_tens(record: Record) -> Record | None:
        return record if record.payload["n"] % 10 == 0 else None

    pipeline = world.pipeline(0, 10, 20, 30, size=11, threshold=1, processors=[keep_tens])
    tight = await Supervisor(pipeline, MemoryStore()).run()
    assert tight.status is Status.DEGRADED
    assert world.letters == [("source", 0)]

    wide = World()
    pipeline = wide.pipeline(0, 10, 20, 30, size=10, threshold=1, processors=[keep_tens])
    assert (await Supervisor(pipeline, MemoryStore()).run()).status is Status.COMPLETED
    assert wide.letters == [("source", n) for n in (0, 10, 20, 30)]


@simulated(seeds=range(10))
async def test_every_source_has_a_window_of_its_own(seed: int) -> None:
    world = World()

    def refuse_of_a(record: Record) -> Record:
        if record.payload["from"] == "a" and record.payload["n"] in (3, 4):
            raise RecordRefused("a is odd")
        if record.payload["from"] == "b" and record.payload["n"] == 4:
            raise RecordRefused("b is odd")
        return record

    pipeline = world.pipeline(size=10, threshold=2, sources=("a", "b"), processors=[Processor("judge", refuse_of_a)])
    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert sorted(world.letters) == [("a", 3), ("a", 4), ("b", 4)]
    assert world.acked("a") == world.acked("b") == list(range(40))


async def test_the_pieces_of_one_record_are_one_outcome(autojump_clock: MockClock) -> None:
    world = World()

    def in_three(record: Record) -> list[Record]:
        return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(3)]

    pipeline = world.pipeline(10, 11, 12, 20, 22, size=5, threshold=2, records=8, processors=[in_three])
    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert world.letters == [("source", n) for n in (1, 1, 1, 2, 2)]
    assert world.acked() == list(range(8))


async def test_a_threshold_of_0_stops_at_the_first(autojump_clock: MockClock) -> None:
    world = World()
    state = await Supervisor(world.pipeline(9, size=100, threshold=0), MemoryStore()).run()

    assert state.status is Status.DEGRADED
    assert world.letters == []
    assert world.acked() == list(range(9))


@pytest.mark.parametrize("batch_size", [1, 7, 400])
async def test_without_a_window_a_run_stops_when_nearly_all_of_its_first_records_are_refused(
    batch_size: int, autojump_clock: MockClock
) -> None:
    world = World()
    pipeline = world.pipeline(*range(2, 300), size=None, threshold=0, records=300, batch_size=batch_size)
    state = await Supervisor(pipeline, MemoryStore(), recovery=RESTARTS).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node) == ("dead_letter.not_allowed", "lake")
    assert state.error.message == (
        "nearly all of the first records were refused: 96 of 98; lake refused the last one: no 97"
    )
    assert world.letters == [("source", n) for n in range(2, 97)]
    assert world.acked() == list(range(97))


async def test_without_a_window_a_run_that_began_well_may_refuse_everything_later(autojump_clock: MockClock) -> None:
    world = World()
    state = await Supervisor(world.pipeline(*range(5, 300), size=None, threshold=0, records=300), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert len(world.letters) == 295


async def test_a_window_size_of_0_accepts_any_number_of_refusals(autojump_clock: MockClock) -> None:
    world = World()
    state = await Supervisor(world.pipeline(*range(300), size=0, threshold=0, records=300), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert len(world.letters) == 300
