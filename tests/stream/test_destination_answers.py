"""Destinations that answer later: answers are matched, counted, waited for, and bounded."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Retry, Source, sdk
from conduit_py.batch import Span
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Answer, Batch, MessageId
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    AnswerUnknown,
    Block,
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    Refuse,
    RepeatAnswer,
    ScriptedDestination,
    ScriptedSource,
    ScriptStep,
    position_of,
    simulated,
)


def made(log: EventLog, connector: Any = None, *, stop_seconds: float = 30, records: int = 12, **lake: Any) -> Pipeline:
    if connector is None:
        connector = ScriptedDestination(name="lake", log=log, acks=AckMode.LATER, **lake)
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=log), batch_size=4)],
        destinations=[Destination("lake", connector)],
        dead_letters=DeadLetters(Letters(log)),
        stop_seconds=stop_seconds,
    )


class Letters:
    """Keeps letters in the log, as events."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def __call__(self, letter: DeadLetter) -> None:
        self.log.note("letters", "keep", str(letter.message.sequence), letter.error)


def kept(log: EventLog) -> list[tuple[str, ...]]:
    return [event.what for event in log.did("keep")]


class Outspoken(sdk.DestinationConnector[sdk.Options]):
    """Answers with what it was given, once something was written, then with what is outstanding."""

    acks = AckMode.LATER

    def saying(self, *answers: Any) -> "Outspoken":
        self.said = list(answers)
        self.calls = 0
        self.written: list[MessageId] = []
        self.arrived = trio.Event()
        return self

    async def write(self, batch: Batch) -> Any:
        self.written += batch.ids
        self.arrived.set()

    async def answers(self) -> Sequence[Answer]:
        self.calls += 1
        await self.arrived.wait()
        if self.said:
            given: Sequence[Answer] = self.said.pop(0)
            return given
        self.arrived = trio.Event()
        written, self.written = self.written, []
        return [Answer(message) for message in written]

    def fresh(self) -> "Outspoken":
        return self


class TestOrder:
    """Answers may come in any order and any number at a time."""

    @simulated(seeds=range(10))
    async def test_late_refusals_become_letters_in_the_order_of_the_source(self, seed: int) -> None:
        log = EventLog()
        script: dict[int, Any] = {n: OnAnswer(Delay((n * 5) % 7)) for n in range(12)}
        script |= {3: (Refuse("three"), OnAnswer(Delay(9))), 4: Refuse("four"), 10: (Refuse("ten"), OnAnswer(Delay(3)))}
        state = await Supervisor(made(log, script=script, answer_chunks=[1, 2]), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert kept(log) == [("3", "three"), ("4", "four"), ("10", "ten")]
        assert log.acked["source"] == [position_of(n) for n in range(12)]
        log.check()

    @simulated(seeds=range(10))
    async def test_answers_may_be_faster_than_the_return_of_the_write(self, seed: int) -> None:
        log = EventLog()
        script: dict[int, Any] = {n: Delay(1) for n in range(12)} | {6: (Delay(1), Refuse("six"))}
        state = await Supervisor(made(log, script=script, answers_early=True), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert log.numbers("lake") == [n for n in range(12) if n != 6]
        assert kept(log) == [("6", "six")]

    async def test_nobody_asks_for_answers_while_none_is_outstanding(self, autojump_clock: MockClock) -> None:
        lake, log = Outspoken().saying(), EventLog()
        pipeline = made(log, lake, records=1)
        pipeline.sources[0] = Source("source", ScriptedSource(records=2, log=log, script={1: Delay(60)}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(pipeline, MemoryStore()).run)
            await trio.sleep(30)
            assert log.acked["source"] == [b"0"]
            assert lake.calls == 1

        assert lake.calls == 2
        assert log.acked["source"] == [b"0", b"1"]

    async def test_an_empty_answer_lets_the_others_work(self, autojump_clock: MockClock) -> None:
        class Polling(Outspoken):
            async def write(self, batch: Batch) -> None:
                await trio.lowlevel.checkpoint()
                await super().write(batch)

            async def answers(self) -> Sequence[Answer]:
                # Never waits, so the write gets its turn only if the runtime sees to it.
                written, self.written = self.written, []
                return [Answer(message) for message in written]

        log = EventLog()
        state = await Supervisor(made(log, Polling().saying()), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert log.acked["source"] == [position_of(n) for n in range(12)]


class TestBrokenContracts:
    """An answer that nobody waits for ends the run; what was answered rightly before stays acked."""

    @pytest.mark.parametrize(
        ("step", "rule"),
        [
            (RepeatAnswer(), "answered for MessageId(source='source', sequence=2, piece=()), which is not waiting"),
            (
                AnswerUnknown(),
                "answered for MessageId(source='source', sequence=1000000000, piece=()), which is not waiting",
            ),
        ],
    )
    async def test_by_surplus_answers(self, step: ScriptStep, rule: str, autojump_clock: MockClock) -> None:
        log = EventLog()
        state = await Supervisor(made(log, script={2: OnAnswer(step)}), MemoryStore()).run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "contract.broken"
        assert state.error.message == f"lake: {rule} for an answer"
        assert state.error.node == "lake"

    @pytest.mark.parametrize(
        ("said", "rule"),
        [
            (None, "answers() must return a sequence of Answer, not NoneType"),
            (7, "answers() must return a sequence of Answer, not int"),
            (["yes"], "answers() must return Answer or Batch items, not str"),
            (
                [Answer(MessageId("elsewhere", 0))],
                "answered for MessageId(source='elsewhere', sequence=0, piece=()), which is not waiting for an answer",
            ),
            ([Answer(["a list"])], "answered for ['a list'], which is not waiting for an answer"),  # type: ignore[arg-type]
        ],
    )
    async def test_by_wrong_values(self, said: Any, rule: str, autojump_clock: MockClock) -> None:
        log = EventLog()
        state = await Supervisor(made(log, Outspoken().saying(said)), MemoryStore()).run()

        assert state.error is not None
        assert (state.error.code, state.error.message) == ("contract.broken", f"lake: {rule}")
        assert log.acked["source"] == []

    async def test_by_having_no_answers_at_all(self, autojump_clock: MockClock) -> None:
        class Silent(sdk.DestinationConnector[sdk.Options]):
            acks = AckMode.LATER

            async def write(self, batch: Batch) -> None:
                pass

        state = await Supervisor(made(EventLog(), Silent()), MemoryStore()).run()

        assert state.error is not None
        assert (state.error.code, state.error.node) == ("contract.broken", "lake")
        assert state.error.message == "lake: declares AckMode.LATER but has no answers()"

    async def test_by_refusing_what_it_has_answered(self, autojump_clock: MockClock) -> None:
        class Contradictory(Outspoken):
            async def write(self, batch: Batch) -> dict[int, str]:
                await super().write(batch)
                await trio.sleep(1)
                return {0: "no"}

        state = await Supervisor(made(EventLog(), Contradictory().saying()), MemoryStore()).run()

        assert state.error is not None
        assert state.error.code == "contract.broken"


class TestTheEnd:
    """The run waits for every answer, and for nothing else."""

    @simulated(seeds=range(5))
    async def test_a_destination_that_answers_at_the_end_is_notified_of_it(self, seed: int) -> None:
        class AnswersAtTheEnd(Outspoken):
            enough = trio.Event()

            async def finish(self) -> None:
                assert len(self.written) == 12
                finished_at.append(trio.current_time())
                self.enough.set()

            async def answers(self) -> Sequence[Answer]:
                with trio.move_on_after(3600):
                    await self.enough.wait()
                return [Answer(message) for message in self.written]

        finished_at: list[float] = []
        lake = AnswersAtTheEnd().saying()
        state = await Supervisor(made(EventLog(), lake), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert finished_at == [trio.current_time()]

    @simulated(seeds=range(10))
    async def test_it_ends_although_answers_are_waited_for_when_the_write_refuses_all(self, seed: int) -> None:
        class Refusing(Outspoken):
            async def write(self, batch: Batch) -> dict[int, str]:
                # Long enough for the answers of this batch to be asked for before it is refused.
                await trio.sleep(1)
                return {index: f"no {message.sequence}" for index, message in enumerate(batch.ids)}

        log = EventLog()
        state = await Supervisor(made(log, Refusing().saying()), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert kept(log) == [(str(n), f"no {n}") for n in range(12)]
        assert log.acked["source"] == [position_of(n) for n in range(12)]

    @simulated(seeds=range(5))
    async def test_an_answer_that_never_comes_holds_up_a_stop_until_its_deadline(self, seed: int) -> None:
        log = EventLog()
        supervisor = Supervisor(made(log, script={5: OnAnswer(Block())}, stop_seconds=7), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(100)
            assert supervisor.progress().nodes[1].waiting_on == "answers"
            supervisor.stop()

        assert trio.current_time() == 107
        assert supervisor.state.status is Status.STOPPED
        assert supervisor.state.error is not None
        assert supervisor.state.error.code == "stop.timed_out"
        assert supervisor.state.error.message.startswith("the graceful stop did not end within 7 s; 7 records")
        assert log.acked["source"] == [position_of(n) for n in range(5)]

    @simulated(seeds=range(10))
    async def test_answers_that_fail_end_the_run_and_a_restart_loses_nothing(self, seed: int) -> None:
        log, store = EventLog(), MemoryStore()
        script: dict[int, Any] = {5: OnAnswer(Fail("link down", times=2)), 9: OnAnswer(Delay(3))}
        for _ in range(2):
            failed = await Supervisor(made(log, script=script), store).run()
            assert failed.error is not None
            assert (failed.error.message, failed.error.node) == ("link down", "lake")
        state = await Supervisor(made(log, script=script), store).run()

        assert state.status is Status.COMPLETED
        assert sorted(set(log.numbers("lake")), key=str) == sorted(range(12), key=str)
        assert (await store.positions("p")) == {"source": b"11"}
        log.check()


class TestWholeBatches:
    """A batch in place of answers stands for those of its messages that had none yet."""

    class Wholesale(Outspoken):
        """Answers for a batch as a whole, after what is said about some of its messages."""

        def saying(self, *answers: Any) -> "Any":
            self.given: list[Batch] = []
            return super().saying(*answers)

        async def write(self, batch: Batch) -> Any:
            self.given.append(batch)
            await super().write(batch)

        async def answers(self) -> Sequence[Any]:
            self.calls += 1
            await self.arrived.wait()
            self.arrived, given, self.given = trio.Event(), self.given, []
            return [answer for batch in given for answer in self.about(batch)]

        def about(self, batch: Batch) -> list[Any]:
            return [batch]

    async def test_one_answer_acks_all_of_them(self, autojump_clock: MockClock) -> None:
        log, lake = EventLog(), self.Wholesale().saying()
        state = await Supervisor(made(log, lake), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert log.acked["source"] == [position_of(n) for n in range(12)]
        assert lake.calls == 3

    async def test_messages_that_were_refused_before_it_stay_refused(self, autojump_clock: MockClock) -> None:
        class Choosy(TestWholeBatches.Wholesale):
            async def write(self, batch: Batch) -> dict[int, str]:
                await super().write(batch)
                return {3: "at once"}

            def about(self, batch: Batch) -> list[Any]:
                return [Answer(batch.id(1), refused="later"), batch]

        log = EventLog()
        state = await Supervisor(made(log, Choosy().saying()), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        refused = [
            ("1", "later"),
            ("3", "at once"),
            ("5", "later"),
            ("7", "at once"),
            ("9", "later"),
            ("11", "at once"),
        ]
        assert kept(log) == refused
        assert log.acked["source"] == [position_of(n) for n in range(12)]

    @pytest.mark.parametrize("fails", [False, True])
    async def test_that_come_before_the_write_returns_leave_what_it_refuses_to_it(
        self, fails: bool, autojump_clock: MockClock
    ) -> None:
        class Early(TestWholeBatches.Wholesale):
            async def write(self, batch: Batch) -> dict[int, str] | None:
                written.append(len(batch))
                await super().write(batch)
                await trio.sleep(1)
                if fails and len(written) == 1:
                    raise sdk.TransientError("link down")
                return None if fails else {1: "no"}

        written: list[int] = []
        log = EventLog()
        pipeline = made(log, Early().saying())
        pipeline.destinations[0].retry = Retry(attempts=2)
        state = await Supervisor(pipeline, MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert kept(log) == ([] if fails else [("1", "no"), ("5", "no"), ("9", "no")])
        assert written == [4, 4, 4], "what is answered for is not written again"
        assert log.acked["source"] == [position_of(n) for n in range(12)]

    async def test_a_part_of_a_batch_is_a_batch_too(self, autojump_clock: MockClock) -> None:
        class Halving(TestWholeBatches.Wholesale):
            def about(self, batch: Batch) -> list[Any]:
                return [batch.select([2, 3]), Answer(batch.id(1)), batch.select([0])]

        log = EventLog()
        state = await Supervisor(made(log, Halving().saying()), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert log.acked["source"] == [position_of(n) for n in range(12)]

    @pytest.mark.parametrize(
        ("about", "rule"),
        [
            (lambda batch: [batch, batch], "answered for MessageId(source='source', sequence=0, piece=()), which"),
            (lambda batch: [batch.select([])], "answered for a batch without messages, which"),
            (
                lambda batch: [Batch.whole(Span("p", "elsewhere", 0, [b"0"]), batch.records[:1])],
                "answered for MessageId(source='elsewhere', sequence=0, piece=()), which",
            ),
        ],
    )
    async def test_that_nobody_waits_for_break_the_contract(
        self, about: Any, rule: str, autojump_clock: MockClock
    ) -> None:
        lake = self.Wholesale().saying()
        lake.about = about
        state = await Supervisor(made(EventLog(), lake), MemoryStore()).run()

        assert state.error is not None
        assert state.error.code == "contract.broken"
        assert state.error.message == f"lake: {rule} is not waiting for an answer"

    async def test_a_write_that_failed_is_repeated_for_what_was_not_answered(self, autojump_clock: MockClock) -> None:
        class Stumbling(TestWholeBatches.Wholesale):
            async def write(self, batch: Batch) -> None:
                sizes.append(len(batch))
                if len(sizes) == 1:
                    self.given.append(batch.select([0, 1]))
                    self.arrived.set()
                    await trio.sleep(1)
                    raise sdk.TransientError("link down")
                await super().write(batch)

        sizes: list[int] = []
        log = EventLog()
        pipeline = made(log, Stumbling().saying())
        pipeline.destinations[0].retry = Retry(attempts=2)
        state = await Supervisor(pipeline, MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert sizes == [4, 2, 4, 4]
        assert log.acked["source"] == [position_of(n) for n in range(12)]
