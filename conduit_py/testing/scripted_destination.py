"""ScriptedDestination: an in-memory destination that follows a script for each record."""

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec
import trio
from pydantic import Field

from conduit_py.batch import Batch, MessageId
from conduit_py.sdk.destination import AckMode, Answer, DestinationConnector, Refusals
from conduit_py.sdk.plugin import Options
from conduit_py.testing.event_log import CallOrder, EventLog, ReceivedRecord
from conduit_py.testing.script import (
    AnswerUnknown,
    AwaitFlush,
    Block,
    Delay,
    Fail,
    OnAnswer,
    OnFlush,
    Refuse,
    RefuseOutside,
    RepeatAnswer,
    ScriptStep,
    Steps,
    perform,
    steps_of,
)


class ScriptedDestinationOptions(Options):
    """How a scripted destination behaves."""

    name: str = Field(default="destination", description="its name in the log")
    acks: AckMode = Field(default=AckMode.WRITE, description="when a record counts as handled")
    script: dict[int, Steps] = Field(default_factory=dict, description="number of a record → steps; see testing.script")
    answer_chunks: list[int] = Field(default_factory=list, description="how many answers come at once, in turn")
    answers_early: bool = Field(default=False, description="answers may come while their write has not returned")
    log: EventLog = Field(default_factory=EventLog, description="where everything is noted and kept; survives runs")
    at_open: Steps = ()
    at_teardown: Steps = ()


class ScriptedDestination(DestinationConnector[ScriptedDestinationOptions]):
    """Takes numbered records and keeps what it made durable in `log.stored`.

    A record becomes durable exactly when it counts as handled: AckMode.WRITE stores it at once, FLUSH at the flush,
    LATER with its answer. What was only written is lost with the run, so an early ack shows as a lost record. A write
    that fails has stored the records before the failing one.
    """

    @property
    def acks(self) -> AckMode:  # type: ignore[override]
        return self.options.acks

    @property
    def log(self) -> EventLog:
        return self.options.log

    @cached_property
    def _call_order(self) -> CallOrder:
        return CallOrder(self.options.name, self.log)

    async def open(self) -> None:
        self._unflushed: list[ReceivedRecord] = []
        self._pending = AnswerQueue(self.options.name, self.log, self.options.answer_chunks)
        with self._call_order.call("open"):
            self._note("open")
            await self._perform_all(self.options.at_open, "open")

    async def write(self, batch: Batch) -> Refusals | None:
        with self._call_order.call("write"):
            await trio.lowlevel.checkpoint()
            refusals: dict[int, str | Exception] = {}
            answers: list[PendingAnswer] = []
            for index, record in enumerate(batch):
                # A copy: what is changed in the record later must not change what was received.
                delivery = ReceivedRecord(batch.source, record.copy(), batch.delivery_key(index))
                self.log.writes(self.options.name, delivery)
                steps = self._steps(delivery)
                for step in steps:
                    await perform(step, self.log, self._place("write", delivery))
                if RefuseOutside() in steps:
                    refusals[len(batch)] = "scripted refusal of nothing"
                refusal = next((step.reason for step in steps if isinstance(step, Refuse)), None)
                if self.acks is AckMode.LATER:
                    answers.append(PendingAnswer.of(Answer(batch.id(index), refusal), delivery, steps))
                    if self.options.answers_early:
                        self._pending.add(answers.pop())
                elif refusal is not None:
                    refusals[index] = refusal
                else:
                    self._accept(delivery)
            # Only now: a write that fails is written again, and each message may be answered once.
            self._pending.add(*answers)
            return refusals or None

    async def flush(self) -> None:
        with self._call_order.call("flush"):
            await trio.lowlevel.checkpoint()
            self._note("flush")
            self._pending.flush()
            while self._unflushed:
                delivery = self._unflushed[0]
                for step in self._steps(delivery):
                    if isinstance(step, OnFlush):
                        await perform(step.step, self.log, self._place("flush", delivery))
                self.log.stores(self.options.name, self._unflushed.pop(0))

    async def finish(self) -> None:
        with self._call_order.call("finish"):
            self._note("finish")

    async def answers(self) -> Sequence[Answer]:
        with self._call_order.call("answers", group="answers"):
            return await self._pending.next()

    async def teardown(self) -> None:
        with self._call_order.call("teardown"):
            self._note("teardown")
            await self._perform_all(self.options.at_teardown, "teardown")

    def _accept(self, delivery: ReceivedRecord) -> None:
        if self.acks is AckMode.WRITE:
            self.log.stores(self.options.name, delivery)
        else:
            self._unflushed.append(delivery)

    def _steps(self, delivery: ReceivedRecord) -> tuple[ScriptStep, ...]:
        number = delivery.number
        return () if number is None else steps_of(self.options.script.get(number))

    async def _perform_all(self, steps: Steps, when: str) -> None:
        await trio.lowlevel.checkpoint()
        for step in steps_of(steps):
            await perform(step, self.log, f"{self.options.name} {when}")

    def _place(self, when: str, delivery: ReceivedRecord) -> str:
        return f"{self.options.name} {when} {delivery.label}"

    def _note(self, did: str, *what: str) -> None:
        self.log.note(self.options.name, did, *what)


class PendingAnswer(msgspec.Struct, eq=False):
    """One answer that has not left yet."""

    answer: Answer
    delivery: ReceivedRecord
    steps: Sequence[ScriptStep]
    due: float

    @classmethod
    def of(cls, answer: Answer, delivery: ReceivedRecord, steps: Sequence[ScriptStep]) -> "PendingAnswer":
        """The answer by the script of its record. Delays count from now."""
        own = [step.step for step in steps if isinstance(step, OnAnswer)]
        due = trio.current_time() + sum(step.seconds for step in own if isinstance(step, Delay))
        held = any(isinstance(step, Block | AwaitFlush) for step in own)
        return cls(answer, delivery, own, math.inf if held else due)


class AnswerQueue:
    """Answers leave in the order in which they are due, so delays put them out of order.

    An accepted record becomes durable at the moment its answer leaves.
    """

    def __init__(self, node: str, log: EventLog, chunks: Sequence[int]) -> None:
        self._node = node
        self._log = log
        self._chunks = chunks
        self._turns = 0
        self._pending: list[PendingAnswer] = []
        self._changed = trio.Event()

    def add(self, *pending: PendingAnswer) -> None:
        self._pending.extend(pending)
        self._wake()

    def flush(self) -> None:
        for pending in self._pending:
            if AwaitFlush() in pending.steps:
                pending.due = trio.current_time()
        self._wake()

    async def next(self) -> list[Answer]:
        """Wait until an answer is due; take what is due, as many as the script gives at once."""
        await trio.lowlevel.checkpoint()
        while not (due := self._due()):
            # Taken before the wait: an answer that is added later sets this very event.
            changed = self._changed
            with trio.move_on_at(min((each.due for each in self._pending), default=math.inf)):
                await changed.wait()
        if self._chunks:
            due = due[: self._chunks[self._turns % len(self._chunks)]]
            self._turns += 1
        for pending in due:
            for step in pending.steps:
                if isinstance(step, Fail):
                    await perform(step, self._log, f"{self._node} answer {pending.delivery.label}")
        return [answer for pending in due for answer in self._say(pending)]

    def _due(self) -> list[PendingAnswer]:
        now = trio.current_time()
        return sorted((each for each in self._pending if each.due <= now), key=lambda each: each.due)

    def _say(self, pending: PendingAnswer) -> list[Answer]:
        self._pending.remove(pending)
        if pending.answer.refused is None:
            self._log.stores(self._node, pending.delivery)
        answers = [pending.answer]
        if RepeatAnswer() in pending.steps:
            answers.append(pending.answer)
        if AnswerUnknown() in pending.steps:
            answers.append(Answer(MessageId(pending.answer.message.source, 10**9)))
        return answers

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
