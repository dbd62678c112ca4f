"""PendingAnswers: what a destination that answers later still has to say, and when it will say it."""

import math
from collections.abc import Sequence

import msgspec
import trio

from conduit_py.batch import MessageId
from conduit_py.sdk.destination import Answer
from conduit_py.testing.log import Delivery, Log
from conduit_py.testing.script import AwaitFlush, Block, Delay, Fail, Mistake, OnAnswer, Repeat, Step, perform


class Pending(msgspec.Struct, eq=False):
    """One answer that has not left yet."""

    answer: Answer
    delivery: Delivery
    steps: Sequence[Step]
    due: float

    @classmethod
    def of(cls, answer: Answer, delivery: Delivery, steps: Sequence[Step]) -> "Pending":
        """The answer as the script of its record wants it, counting delays from now."""
        own = [step.step for step in steps if isinstance(step, OnAnswer)]
        due = trio.current_time() + sum(step.seconds for step in own if isinstance(step, Delay))
        held = any(isinstance(step, Block | AwaitFlush) for step in own)
        return cls(answer, delivery, own, math.inf if held else due)


class PendingAnswers:
    """Answers leave in the order in which they are due, so delays put them out of order.

    An accepted record becomes durable at the moment its answer leaves.
    """

    def __init__(self, node: str, log: Log, chunks: Sequence[int]) -> None:
        self._node = node
        self._log = log
        self._chunks = chunks
        self._turns = 0
        self._pending: list[Pending] = []
        self._changed = trio.Event()

    def add(self, *pending: Pending) -> None:
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

    def _due(self) -> list[Pending]:
        now = trio.current_time()
        return sorted((each for each in self._pending if each.due <= now), key=lambda each: each.due)

    def _say(self, pending: Pending) -> list[Answer]:
        self._pending.remove(pending)
        if pending.answer.refused is None:
            self._log.stores(self._node, pending.delivery)
        answers = [pending.answer]
        if Repeat() in pending.steps:
            answers.append(pending.answer)
        if Mistake() in pending.steps:
            answers.append(Answer(MessageId(pending.answer.message.source, 10**9)))
        return answers

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
