"""AckReader: reads the answers of a destination that acks asynchronously (`AckMode.LATER`).

`answers_about` waits for those about one batch, where nothing else is written meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence

import trio

from conduit_py.batch import Batch, MessageId, Span
from conduit_py.dead_letter import Failure
from conduit_py.errors import ContractBroken
from conduit_py.sdk.destination import Answer
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.meter import WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors
from conduit_py.stream.signal import Signal


class AckReader:
    """Matches answers to written messages, in any order, and casts the votes of the destination.

    A message is expected before it is written, because its answer may arrive before `write` returns.
    The windows of the sources bound how many messages are expected. `run` ends when the writer has
    finished and no answer is outstanding.

    A batch without answers is kept as one entry. It is split into messages at the first answer about
    a single message.
    """

    def __init__(self, context: NodeContext, calls: PluginCaller) -> None:
        self._context = context
        self._node = context.node
        self._calls = calls
        self._meter = context.meter
        self._whole: dict[MessageId, Batch] = {}
        """Batches without an answer so far, by their first message."""
        self._single: dict[MessageId, tuple[Batch, int]] = {}
        self._writing: Span | None = None
        self._early: list[Batch] = []
        """Acks that arrived during `write`: it may still return refusals for the same messages."""
        self._changed = Signal()
        self._finishing = False
        self._listening = trio.CancelScope()

    def expect(self, batch: Batch) -> None:
        """Expect answers about a batch. Call this before the batch is written."""
        # Before the write: a fast destination answers before `write` returns.
        self._whole[batch.id(0)] = batch
        self._writing = batch.span
        self._changed.set()

    def end_write(self) -> None:
        """Vote for the answers that came during `write`. Call this after `forget`."""
        self._writing = None
        self._vote_early()

    def forget(self, batch: Batch, indices: Iterable[int]) -> None:
        """Expect no answers about these messages, because the result of `write` covers them."""
        self._look_into(batch.id(0))
        for index in indices:
            self._take(batch.id(index))

    def still_open(self, batch: Batch) -> Batch:
        """Return the unanswered messages of a batch after its write failed; some may be acked already."""
        self._vote_early()
        self._look_into(batch.id(0))
        return batch.select([index for index, message in enumerate(batch.ids) if message in self._single])

    def finish(self) -> None:
        """End `run` after the last outstanding answer. Call this when nothing more will be written."""
        self._finishing = True
        self._changed.set()
        if not self._outstanding:
            # `write` may have refused everything while `answers` was waiting. Then no answer will ever arrive.
            self._listening.cancel()

    @property
    def _outstanding(self) -> bool:
        return bool(self._whole or self._single)

    async def run(self) -> None:
        with self._listening:
            while self._outstanding or not self._finishing:
                if self._outstanding:
                    await self._listen()
                else:
                    await self._changed.wait()

    async def _listen(self) -> None:
        with self._meter.waiting(WaitReason.ANSWERS):
            answers = await next_answers(self._node, self._calls)
        self._vote(answers)

    def _vote(self, answers: Iterable[Answer | Batch]) -> None:
        """Cast votes for these answers, one vote for each run of acks within a span."""
        span: Span | None = None
        acked: list[int] = []
        for answer in answers:
            if isinstance(answer, Batch):
                # Acked now, a message that `write` refuses a moment later would have two votes (invariant 4).
                if answer.span is self._writing:
                    self._early.append(answer)
                else:
                    self._ack(*self._take_all(answer))
                continue
            batch, index = self._take(answer.message)
            if answer.refused is not None:
                self._refuse(batch, index, answer.refused)
                continue
            # One vote for a run of acks: a vote for each message would cost more than the write.
            if batch.span is not span:
                self._ack(span, acked)
                span, acked = batch.span, []
            acked.append(batch.sequences[index])
        self._ack(span, acked)

    def _vote_early(self) -> None:
        early, self._early = self._early, []
        for answered in early:
            self._ack(*self._take_all(answered))

    def _ack(self, span: Span | None, sequences: Sequence[int]) -> None:
        if span is not None:
            self._context.ack(span, sequences)

    def _refuse(self, batch: Batch, index: int, refused: str) -> None:
        if self._context.tap_point.taps:
            self._context.tap_point.refuse(batch, index, refused)
        self._context.nack(batch, index, batch.record(index), Failure(self._node, refused))

    def _take(self, message: MessageId) -> tuple[Batch, int]:
        # The message comes from the plugin. A wrong one must not become a vote on another message.
        if not isinstance(message, MessageId):
            raise unexpected_answer(self._node, message)
        if message not in self._single:
            for first in [*self._whole]:
                self._look_into(first)
        if message not in self._single:
            raise unexpected_answer(self._node, message)
        return self._single.pop(message)

    def _take_all(self, answered: Batch) -> tuple[Span, Sequence[int]]:
        """Remove the messages of the batch that wait for an answer; raise if none does."""
        first = answered.id(0) if answered.sequences else None
        given = self._whole.get(first) if first is not None else None
        # The usual case: the destination answers with the batch it was given. Identity checks avoid a loop.
        if given is not None and given.sequences is answered.sequences and given.pieces is answered.pieces:
            del self._whole[given.id(0)]
            return given.span, given.sequences
        for other in [each for each, batch in self._whole.items() if batch.span is answered.span]:
            self._look_into(other)
        # Only those that still wait: the result of `write` may have covered some of them.
        waiting = [found for message in answered.ids if (found := self._single.pop(message, None)) is not None]
        if not waiting:
            raise unexpected_answer(self._node, first or "a batch without messages")
        return waiting[0][0].span, [batch.sequences[index] for batch, index in waiting]

    def _look_into(self, first: MessageId) -> None:
        """Expect the answers of the batch that begins with this message one by one."""
        batch = self._whole.pop(first, None)
        if batch is not None:
            self._single.update((message, (batch, index)) for index, message in enumerate(batch.ids))


async def next_answers(node: str, calls: PluginCaller) -> Sequence[Answer | Batch]:
    """Wait for the next answers of a destination that acks asynchronously."""
    if calls.inherits("answers"):
        raise ContractBroken(node, "declares AckMode.LATER but has no answers()")
    with PluginErrors(node, "answers"):
        answers = await calls("answers")
    if not isinstance(answers, Sequence):
        raise ContractBroken(node, f"answers() must return a sequence of Answer, not {type(answers).__name__}")
    for answer in answers:
        if not isinstance(answer, Answer | Batch):
            raise ContractBroken(node, f"answers() must return Answer or Batch items, not {type(answer).__name__}")
    if not answers:
        # A destination that polls without waiting would starve every other task.
        await trio.lowlevel.checkpoint()
    return answers


async def answers_about(node: str, calls: PluginCaller, batch: Batch, refused: Mapping[int, str]) -> dict[int, str]:
    """Wait for the answers about a batch, except those `write` refused. Returns later refusals as index → reason."""
    waiting = {message: index for index, message in enumerate(batch.ids) if index not in refused}
    later: dict[int, str] = {}
    while waiting:
        for answer in await next_answers(node, calls):
            messages = answer.ids if isinstance(answer, Batch) else [answer.message]
            found = [waiting.pop(each) for each in messages if isinstance(each, MessageId) and each in waiting]
            if not found:
                raise unexpected_answer(node, messages[0] if messages else "a batch without messages")
            if isinstance(answer, Answer) and answer.refused is not None:
                later[found[0]] = answer.refused
    return later


def unexpected_answer(node: str, message: object) -> ContractBroken:
    return ContractBroken(node, f"answered for {message}, which is not waiting for an answer")
