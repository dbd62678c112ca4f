"""DeadLetter: a refused record with everything needed to understand it and to send it again."""

import time

import msgspec

from conduit_py import metadata
from conduit_py.batch import Batch, MessageId
from conduit_py.record import Payload, Record, Structured


class Failure(msgspec.Struct, frozen=True):
    """Which node refused a message, why, and at which attempt. Text only: errors keep tracebacks alive."""

    node: str
    error: str
    attempt: int = 1


class DeadLetter(msgspec.Struct):
    """A refused message: the record as it stood at the failing node, and why it got no further.

    `failures` has one entry per node that refused it, the first of which counts as the cause.
    """

    pipeline: str
    message: MessageId
    position: bytes
    record: Record
    failures: list[Failure]
    at: float = msgspec.field(default_factory=time.time)
    elsewhere: dict[str, Record] = {}
    """The record as it stood at each further node that refused it: branches may have changed it differently."""
    record_index: int = 0
    """Which record of its message it is about, where the message stands for several."""

    @classmethod
    def about(cls, batch: Batch, index: int, record: Record, failure: Failure) -> "DeadLetter":
        """The letter for the message at `index`, whose record now looks like `record`."""
        position = batch.span.position(batch.sequences[index])
        return cls(batch.span.pipeline, batch.id(index), position, record, [failure])

    def join(self, later: "DeadLetter") -> None:
        """Take in what another node said about the same message."""
        self.failures.extend(later.failures)
        self.elsewhere |= {failure.node: later.record for failure in later.failures if failure.node != self.node}

    @property
    def records(self) -> dict[str, Record]:
        """The record as it stood at each node that refused it, the first one first."""
        return {self.node: self.record, **self.elsewhere}

    @property
    def node(self) -> str:
        return self.failures[0].node

    @property
    def error(self) -> str:
        return self.failures[0].error

    def to_map(self) -> Structured:
        """The letter as plain values: what a dead-letter destination stores as its payload."""
        return {
            "pipeline": self.pipeline,
            "source": self.message.source,
            "position": self.position,
            "piece": list(self.message.piece),
            "node": self.node,
            "error": self.error,
            "attempt": self.failures[0].attempt,
            "failures": [msgspec.structs.asdict(failure) for failure in self.failures],
            "at": self.at,
            "record": self.record.to_map(),
        }

    def to_record(self) -> Record:
        """The letter as a record for a dead-letter destination."""
        return Record(
            position=self.position,
            metadata={
                metadata.CREATED_AT: str(int(self.at * 1e9)),
                metadata.SOURCE_ID: self.message.source,
                metadata.NACK_ERROR: self.error,
                metadata.NACK_NODE: self.node,
            },
            payload=Payload(after=self.to_map()),
        )


class RefusedWithLetter(Exception):
    """The refusal of a record for which there is a dead letter already, because another node refused it."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(letter.error)
        self.letter = letter
