"""AckReader: hears the answers of a destination that gives them later."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conduit_py.batch import Batch, MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import ContractBroken
from conduit_py.sdk.destination import Answer
from conduit_py.stream.border import border
from conduit_py.stream.calls import Calls
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter
from conduit_py.stream.signal import Signal


class AckReader:
    """Matches answers to the messages written, in whatever order they come, and votes accordingly.

    A message is expected before it is written, because its answer may be faster than the return of
    `write`. What is expected is bounded by the windows of the sources. Answers end when the writer
    has finished and none is outstanding.
    """

    def __init__(self, node: str, calls: Calls, voter: int, ledgers: Mapping[str, Ledger], meter: Meter) -> None:
        self._node = node
        self._calls = calls
        self._voter = voter
        self._ledgers = ledgers
        self._meter = meter
        self._outstanding: dict[MessageId, tuple[Batch, int]] = {}
        self._changed = Signal()
        self._finishing = False

    def expect(self, batch: Batch) -> None:
        for index, message in enumerate(batch.ids):
            self._outstanding[message] = (batch, index)
        self._changed.set()

    def forget(self, batch: Batch, indices: Iterable[int]) -> None:
        """`write` itself has answered for these."""
        for index in indices:
            self._take(batch.id(index))

    def unanswered(self, batch: Batch) -> Batch:
        """What is left to write of a batch whose write failed: some answers may have come all the same."""
        return batch.select([index for index, message in enumerate(batch.ids) if message in self._outstanding])

    def finish(self) -> None:
        """Nothing more will be written."""
        self._finishing = True
        self._changed.set()

    async def run(self) -> None:
        while self._outstanding or not self._finishing:
            if not self._outstanding:
                await self._changed.wait()
                continue
            with border(self._node, "answers"), self._meter.waiting("answers"):
                answers: Sequence[Answer] = await self._calls("answers")
            for answer in answers:
                self._hear(answer)

    def _hear(self, answer: Any) -> None:
        if not isinstance(answer, Answer):
            raise ContractBroken(self._node, f"answers() must give Answer, not {type(answer).__name__}")
        batch, index = self._take(answer.message)
        ledger = self._ledgers[batch.source]
        if answer.refused is None:
            ledger.ack_some(batch.span, (batch.sequences[index],), self._voter)
            return
        self._meter.refused += 1
        letter = DeadLetter.about(batch, index, batch.records[index], Failure(self._node, answer.refused))
        ledger.nack(batch.span, letter, self._voter)

    def _take(self, message: MessageId) -> tuple[Batch, int]:
        if message not in self._outstanding:
            raise ContractBroken(self._node, f"answered for {message}, which is not waiting for an answer")
        return self._outstanding.pop(message)
