"""What becomes of refused records: stop, drop, a destination or a callable, in order, once, or not acked."""

import logging
import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Recovery, Retry, Source, sdk
from conduit_py import metadata as keys
from conduit_py.errors import FatalError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Batch
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Block,
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    Refuse,
    ScriptedDestination,
    ScriptedSource,
    numbered_record,
    position_of,
    simulated,
)

PATIENT = Recovery(delay_seconds=1, retries=5)


def made(
    log: EventLog, handler: Any, *, refused: dict[int, Any], records: int = 10, batch_size: int = 4, **letters: Any
) -> Pipeline:
    """One source whose destination refuses some records."""
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=log), batch_size=batch_size)],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, script=refused))],
        dead_letters=DeadLetters(handler, **letters),
    )


async def run(pipeline: Pipeline, store: MemoryStore | None = None) -> PipelineState:
    return await Supervisor(pipeline, store or MemoryStore(), recovery=PATIENT).run()


def acked(log: EventLog, source: str = "source") -> list[int]:
    return [int(position) for position in log.acked[source]]


def no(*numbers: int) -> dict[int, Any]:
    return {number: Refuse(f"no {number}") for number in numbers}


class TestStop:
    """The default: the first refusal ends the pipeline for good."""

    @simulated(seeds=range(10))
    async def test_it_is_degraded_with_the_error_of_the_record_and_does_not_restart(self, seed: int) -> None:
        log, store = EventLog(), MemoryStore()
        state = await run(made(log, "stop", refused=no(5)), store)

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "dead_letter.not_allowed"
        assert state.error.message == "lake refused a record: no 5"
        assert state.error.node == "lake"
        assert len(log.did("open", "source")) == 1
        assert acked(log) == [0, 1, 2, 3, 4]
        assert await store.positions("p") == {"source": b"4"}
        log.check()

    def test_it_is_the_default(self) -> None:
        assert DeadLetters().policy.stops


class TestDrop:
    """Refused records are logged, counted and gone."""

    async def test_everything_is_acked(self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
        log = EventLog()
        supervisor = Supervisor(made(log, "drop", refused=no(0, 5, 9)), MemoryStore())
        with caplog.at_level(logging.WARNING, "conduit_py.dead_letters"):
            state = await supervisor.run()

        assert state.status is Status.COMPLETED
        assert acked(log) == list(range(10))
        assert supervisor.progress().dead_letters == 3
        assert [record.getMessage() for record in caplog.records] == [
            f"dropped a record of source that lake refused: no {n}" for n in (0, 5, 9)
        ]


class TestCallable:
    """A function of the user's, sync or async, is given one letter after another."""

    @pytest.mark.parametrize("sync", [False, True])
    async def test_it_is_given_every_letter_in_order(self, sync: bool) -> None:
        log, letters, threads = EventLog(), [], set()

        async def keep(letter: DeadLetter) -> None:
            await trio.lowlevel.checkpoint()
            letters.append(letter)

        def keep_blocking(letter: DeadLetter) -> None:
            threads.add(threading.get_ident())
            letters.append(letter)

        state = await run(made(log, keep_blocking if sync else keep, refused=no(0, 2, 3, 7)))

        assert state.status is Status.COMPLETED
        assert [letter.message.sequence for letter in letters] == [0, 2, 3, 7]
        assert acked(log) == list(range(10))
        assert threading.get_ident() not in threads

    @pytest.mark.parametrize("sync", [False, True])
    async def test_when_it_fails_its_record_and_all_after_it_are_not_acked(self, sync: bool) -> None:
        log, letters = EventLog(), []

        async def keep(letter: DeadLetter) -> None:
            keep_blocking(letter)

        def keep_blocking(letter: DeadLetter) -> None:
            if letter.message.sequence == 3:
                raise OSError("the shelf is full")
            letters.append(letter.message.sequence)

        supervisor = Supervisor(
            made(log, keep_blocking if sync else keep, refused=no(1, 2, 3, 7), batch_size=10), MemoryStore()
        )
        state = await supervisor.run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "dead_letter.failed"
        assert state.error.message == (
            "a dead letter could not be stored: OSError: the shelf is full; lake had refused the record: no 3"
        )
        assert letters == [1, 2]
        assert acked(log) == [0, 1, 2]
        assert supervisor.progress().dead_letters == 2


class Refusing(sdk.DestinationConnector[sdk.Options]):
    """A dead-letter destination that answers its first write with `answer`."""

    def answering(self, answer: Any) -> "Refusing":
        self.answer = answer
        return self

    async def write(self, batch: Batch) -> Any:
        answer, self.answer = self.answer, None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fresh(self) -> "Refusing":
        return self


class TestDestination:
    """Any destination connector may keep the letters."""

    @pytest.mark.parametrize("acks", list(AckMode))
    async def test_letters_are_durable_before_their_records_are_acked(
        self, acks: AckMode, autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        script: dict[int, Any] = {n: OnAnswer(Delay(5)) for n in range(10)} if acks is AckMode.LATER else {}
        shelf = ScriptedDestination(name="shelf", log=log, acks=acks, script=script)
        state = await run(made(log, shelf, refused=no(1, 4, 5)))

        assert state.status is Status.COMPLETED
        assert log.numbers("shelf") == [1, 4, 5]
        assert acked(log) == list(range(10))
        stored: set[str] = set()
        for event in log.events:
            if event.node == "shelf" and event.did == "store":
                stored.add(event.what[0].partition(":")[2])
            if event.did == "ack" and event.what[0] in ("1", "4", "5"):
                assert event.what[0] in stored
        assert [event.did for event in log.events if event.node == "shelf"][-1] == "teardown"
        log.check()

    async def test_the_record_of_a_letter_tells_everything(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        shelf = ScriptedDestination(name="shelf", log=log)
        await run(made(log, shelf, refused=no(5)))

        [delivery] = log.stored["shelf"]
        letter = delivery.record
        assert letter.position == b"5"
        assert letter.metadata[keys.SOURCE_ID] == "source"
        assert letter.metadata[keys.NACK_NODE] == "lake"
        assert letter.metadata[keys.NACK_ERROR] == "no 5"
        after = letter.payload.after
        assert isinstance(after, dict)
        at = after.pop("at")
        assert letter.metadata[keys.CREATED_AT] == str(int(at * 1e9))
        assert after == {
            "pipeline": "p",
            "source": "source",
            "position": b"5",
            "piece": [],
            "node": "lake",
            "error": "no 5",
            "attempt": 1,
            "failures": [{"node": "lake", "error": "no 5", "attempt": 1, "location": None}],
            "record": numbered_record(5).to_map(),
        }
        assert Record.from_map(after["record"]) == numbered_record(5)

    @pytest.mark.parametrize(
        ("answer", "why", "safe"),
        [
            ({1: "too heavy", 2: "too old"}, "too heavy", 4),
            (OSError("no shelf"), "OSError: no shelf", 1),
            (FatalError("closed"), "closed", 1),
            ({3: "x"}, "dead-letters: write() refused record 3 of a batch of 3", 1),
            ({-1: "x"}, "dead-letters: write() refused record -1 of a batch of 3", 1),
            (7, "dead-letters: write() must return None or a mapping of index to reason, not int", 1),
        ],
    )
    async def test_when_it_refuses_or_fails_the_letter_its_record_is_not_acked(
        self, answer: Any, why: str, safe: int, autojump_clock: MockClock
    ) -> None:
        log = EventLog()
        pipeline = made(log, Refusing().answering(answer), refused=no(1, 4, 5), batch_size=10)
        supervisor = Supervisor(pipeline, MemoryStore(), recovery=PATIENT)
        state = await supervisor.run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "dead_letter.failed"
        unsafe = 4 if safe == 4 else 1
        assert state.error.message == (
            f"a dead letter could not be stored: {why}; lake had refused the record: no {unsafe}"
        )
        assert acked(log) == list(range(safe))
        assert supervisor.progress().dead_letters == (1 if safe == 4 else 0)

    async def test_an_answer_that_refuses_a_letter_later_counts_as_well(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        shelf = ScriptedDestination(
            name="shelf", log=log, acks=AckMode.LATER, script={1: OnAnswer(Delay(9)), 4: Refuse("too heavy")}
        )
        state = await run(made(log, shelf, refused=no(1, 4, 5), batch_size=10))

        assert state.error is not None
        assert state.error.message.startswith("a dead letter could not be stored: too heavy; lake had refused")
        assert acked(log) == [0, 1, 2, 3]

    async def test_an_open_that_fails_keeps_everything_from_being_read(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        shelf = ScriptedDestination(name="shelf", log=log, at_open=Fail("no such bucket", error=FatalError))
        state = await run(made(log, shelf, refused={}))

        assert state.error is not None
        assert (state.error.message, state.error.node) == ("no such bucket", "dead-letters")
        assert log.read["source"] == []
        assert len(log.did("teardown", "shelf")) == 1
        assert len(log.did("teardown", "lake")) == 1
        log.check()

    async def test_a_stuck_one_is_cut_off_by_force_and_acks_nothing(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        shelf = ScriptedDestination(name="shelf", log=log, script={4: Block()})
        supervisor = Supervisor(made(log, shelf, refused=no(4)), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(50)
            supervisor.force()

        assert trio.current_time() == 50
        assert acked(log) == [0, 1, 2, 3]


@simulated(seeds=range(10))
async def test_letters_of_two_sources_are_in_the_order_of_each(seed: int) -> None:
    log = EventLog()
    shelf = ScriptedDestination(name="shelf", log=log, script={n: Delay(0.5) for n in range(20)})
    pipeline = Pipeline(
        "p",
        sources=[Source(id, ScriptedSource(name=id, records=20, log=log), batch_size=3) for id in ("a", "b")],
        destinations=[
            Destination(
                "lake", ScriptedDestination(name="lake", log=log, acks=AckMode.LATER, script=no(*range(0, 20, 3)))
            )
        ],
        dead_letters=DeadLetters(shelf),
    )
    state = await run(pipeline)

    assert state.status is Status.COMPLETED
    for source in ("a", "b"):
        assert log.numbers("shelf", source) == list(range(0, 20, 3))
        assert log.acked[source] == [position_of(n) for n in range(20)]
    log.check()


@simulated(seeds=range(10))
async def test_a_letter_has_the_record_as_it_stood_at_the_failing_node(seed: int) -> None:
    log, letters = EventLog(), []

    async def keep(letter: DeadLetter) -> None:
        letters.append(letter)

    def stamp(record: Record) -> Record:
        record.payload["stamped"] = True
        record.position = b"forged"
        return record

    pipeline = made(log, keep, refused=no(3))
    pipeline.processors = [Processor("stamp", stamp)]
    pipeline.destinations += [
        Destination(
            "other",
            ScriptedDestination(name="other", log=log, script={3: (Fail("busy"), Refuse("not here either"))}),
            retry=Retry(attempts=2),
        )
    ]
    state = await run(pipeline)

    assert state.status is Status.COMPLETED
    [letter] = letters
    assert letter.pipeline == "p"
    assert letter.message == sdk.MessageId("source", 3)
    assert letter.position == b"3"
    assert letter.record.payload.after == {"n": 3, "from": "source", "stamped": True}
    assert sorted((each.node, each.error, each.attempt) for each in letter.failures) == [
        ("lake", "no 3", 1),
        ("other", "not here either", 2),
    ]
    assert acked(log) == list(range(10))
