"""DeadLetter: a refused record with everything needed to diagnose it and to send it again."""

import time

import msgspec

from conduit_py import metadata
from conduit_py.batch import Batch, MessageId
from conduit_py.record import Payload, Record, Structured
from conduit_py.redaction import redact


class Failure(msgspec.Struct, frozen=True):
    """The node that refused a message, the reason without secrets, the attempt, and the line that raised.

    Text only: errors keep tracebacks alive.
    """

    node: str
    error: str
    attempt: int = 1
    location: str | None = None
    """File, line and function of the user's code that raised the error; None if no code of the user did."""

    def __post_init__(self) -> None:
        # Before anything stores, cuts or summarises the reason: after a rotation, the old password cannot be masked.
        msgspec.structs.force_setattr(self, "error", redact(self.error))
        if self.location is not None:
            msgspec.structs.force_setattr(self, "location", redact(self.location))


class DeadLetter(msgspec.Struct):
    """A refused message: the record as it was at the failing node, and the failures.

    `failures` has one entry per node that refused it. The first entry counts as the cause.
    """

    pipeline: str
    message: MessageId
    position: bytes
    record: Record
    failures: list[Failure]
    at: float = msgspec.field(default_factory=time.time)
    elsewhere: dict[str, Record] = {}
    """The record as it was at each further node that refused it: branches may change it differently."""
    record_index: int = 0
    """The index of the refused record in its message, if the message is a group."""

    @classmethod
    def about(cls, batch: Batch, index: int, record: Record, failure: Failure) -> "DeadLetter":
        """Make the letter for the message at `index`, with `record` as its current record."""
        position = batch.span.position(batch.sequences[index])
        return cls(batch.span.pipeline, batch.id(index), position, record, [failure])

    def join(self, later: "DeadLetter") -> None:
        """Add the failures of another node for the same message."""
        self.failures.extend(later.failures)
        self.elsewhere |= {failure.node: later.record for failure in later.failures if failure.node != self.node}

    @property
    def records(self) -> dict[str, Record]:
        """The record as it was at each node that refused it, the first node first."""
        return {self.node: self.record, **self.elsewhere}

    @property
    def node(self) -> str:
        return self.failures[0].node

    @property
    def error(self) -> str:
        return self.failures[0].error

    @property
    def location(self) -> str | None:
        return self.failures[0].location

    @property
    def place(self) -> str:
        """Where the record is, for people, as long as its source has not said it better."""
        return record_place(self.message.source, self.position)

    def advise(self, suggestion: str) -> str:
        """Return a suggestion for an error about this letter, after the line of the user's code if that is known."""
        return f"see {self.location}; {suggestion}" if self.location else suggestion

    def to_map(self) -> Structured:
        """Return the letter as plain values, the payload for a dead-letter destination."""
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
        """Return the letter as a record for a dead-letter destination."""
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


def record_place(source: str, position: bytes) -> str:
    """Return where a record is, for people: the position as text where it is printable, otherwise in hexadecimal."""
    text = repr(position.decode()) if position.isascii() and position.decode().isprintable() else position.hex()
    return f"the record of {source} at {text}"


class RefusedWithLetter(Exception):
    """A refusal that carries its dead letter, because another node has refused the record already."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(letter.error)
        self.letter = letter
