"""Batch: the messages that cross a channel together, and the identities they keep for life."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from conduit_py.delivery_key import delivery_key
from conduit_py.record import Record

Piece: TypeAlias = tuple[int, ...]
"""Which part of a split record: () is the whole, (2,) its third piece, (2, 0) the first piece of that."""


class NamedPieces(list[Record]):
    """The pieces of a split record with the names they keep, where a processor passes on a split made before."""

    def __init__(self, records: Iterable[Record], names: Sequence[Piece]) -> None:
        super().__init__(records)
        assert len(self) == len(names)
        self.names = names


class MessageId(NamedTuple):
    """Who a message is, within one run: unchanging, whatever happens to the record it carries."""

    source: str
    sequence: int
    piece: Piece = ()


class Fate(Enum):
    """How a message ended."""

    ACKED = "acked"
    NACKED = "nacked"


FateHandler: TypeAlias = Callable[[MessageId, Fate], None]
"""Told once how a message ended. An error it raises stops the node whose answer settled the message."""


class Span:
    """What one read of one source produced: consecutive sequences with the positions they came from.

    `origin` is the source whose records they are. That is `source` itself, in whose ledger they are,
    unless they are dead letters that are sent again. `scope` names the work whose positions they are if
    several pipelines share it; their messages have the same identities in every one of them. `sizes` says
    how many records each message stands for, if any stands for more than one.
    """

    __slots__ = ("fate_handlers", "first", "origin", "pipeline", "positions", "read_at", "scope", "sizes", "source")

    def __init__(
        self, pipeline: str, source: str, first: int, positions: Sequence[bytes], read_at: float = 0.0
    ) -> None:
        self.pipeline = pipeline
        self.source = self.origin = source
        self.first = first
        self.positions = positions
        self.read_at = read_at
        self.scope = ""
        self.sizes: Sequence[int] | None = None
        self.fate_handlers: dict[int, list[tuple[MessageId, FateHandler]]] = {}

    def __len__(self) -> int:
        return len(self.positions)

    def position(self, sequence: int) -> bytes:
        return self.positions[sequence - self.first]


class Batch:
    """Messages of one span, in source order. `records[i]` is the value of the message `ids[i]`.

    A batch is how messages travel, never what they mean: filtering, splitting or cutting one makes
    another batch in which every message keeps its identity.
    """

    __slots__ = ("pieces", "records", "sequences", "span")

    def __init__(
        self,
        span: Span,
        records: list[Record],
        sequences: Sequence[int],
        pieces: Sequence[Piece] | None = None,
    ) -> None:
        assert len(records) == len(sequences)
        assert pieces is None or len(pieces) == len(records)
        self.span = span
        self.records = records
        self.sequences = sequences
        self.pieces = pieces

    @classmethod
    def whole(cls, span: Span, records: list[Record]) -> "Batch":
        """The batch in which a span sets out: every message, none split."""
        return cls(span, records, range(span.first, span.first + len(span)))

    @property
    def source(self) -> str:
        """The source that the records came from."""
        return self.span.origin

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def piece(self, index: int) -> Piece:
        return self.pieces[index] if self.pieces is not None else ()

    def id(self, index: int) -> MessageId:
        return MessageId(self.span.source, self.sequences[index], self.piece(index))

    @property
    def ids(self) -> list[MessageId]:
        source = self.span.source
        if self.pieces is None:
            return [MessageId(source, sequence) for sequence in self.sequences]
        return [MessageId(source, sequence, piece) for sequence, piece in zip(self.sequences, self.pieces, strict=True)]

    def select(self, indices: Sequence[int]) -> "Batch":
        """The messages at these indices, which must be ascending, with their identities."""
        records, sequences, pieces = self.records, self.sequences, self.pieces
        return Batch(
            self.span,
            [records[index] for index in indices],
            [sequences[index] for index in indices],
            None if pieces is None else [pieces[index] for index in indices],
        )

    def delivery_key(self, index: int) -> bytes:
        """128 bits that name this message on every attempt and after every restart.

        A function of the pipeline, the source, the position and the piece, never of batch boundaries
        or of the run: a destination that remembers it can make its side effects idempotent. Where
        several pipelines share the work of a source, its scope stands for pipeline and source.
        """
        position = self.span.position(self.sequences[index])
        home, name = self.owner
        return delivery_key([home.encode(), name.encode(), position, ".".join(map(str, self.piece(index))).encode()])

    @property
    def owner(self) -> tuple[str, str]:
        """Whose positions these are, since those of others may be equal: a pipeline and a source, or "" and a scope."""
        span = self.span
        # No pipeline has an empty name, so the two kinds of owner cannot meet.
        return ("", span.scope) if span.scope else (span.pipeline, span.origin)

    @property
    def positions(self) -> Sequence[bytes]:
        """The position of every message. With the owner and its piece it names a message as the delivery key does."""
        span, sequences = self.span, self.sequences
        if sequences == range(span.first, span.first + len(span)):
            return span.positions
        return [span.positions[sequence - span.first] for sequence in sequences]

    def on_fate(self, index: int, handler: FateHandler) -> None:
        """Have `handler` told once how the message at `index` ends; the last registered hears first.

        A piece of a split record ends when its whole record does.
        """
        message = self.id(index)
        self.span.fate_handlers.setdefault(message.sequence, []).append((message, handler))
