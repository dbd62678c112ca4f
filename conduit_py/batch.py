"""Batch: the messages that cross a channel together, and their identities, which never change."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from conduit_py import metadata
from conduit_py.payloads import (
    Columns,
    LazyColumn,
    NumbersWithout,
    Payloads,
    TableRows,
    copy_value,
    kind_of,
    make_records,
    take,
)
from conduit_py.record import CollectionSchema, Record

if TYPE_CHECKING:
    import pyarrow as pa

Piece: TypeAlias = tuple[int, ...]
"""Which part of a split record: () is the whole, (2,) its third piece, (2, 0) the first piece of that."""


class NamedPieces(list[Record]):
    """The pieces of a split record with given names, for a processor that passes on an earlier split."""

    def __init__(self, records: Iterable[Record], names: Sequence[Piece]) -> None:
        super().__init__(records)
        assert len(self) == len(names)
        self.names = names


class MessageId(NamedTuple):
    """The identity of a message within one run. It does not change when the record does."""

    source: str
    sequence: int
    piece: Piece = ()


class Fate(Enum):
    """How a message ended."""

    ACKED = "acked"
    NACKED = "nacked"


FateHandler: TypeAlias = Callable[[MessageId, Fate], None]
"""Called once when a message is settled. If it raises, the node whose vote settled the message fails."""


class Span(msgspec.Struct, eq=False):
    """The messages of one read of one source: consecutive sequences and their positions."""

    pipeline: str
    source: str
    """The source whose ledger has the messages."""
    first: int
    positions: Sequence[bytes]
    read_at: float = 0.0
    scope: str = ""
    """The name of the work if several pipelines share it; the delivery keys are then equal in all of them."""
    origin: str = ""
    """The source that read the records, if it is not `source`: set only for replayed dead letters."""
    sizes: Sequence[int] | None = None
    """The number of records in each message; None if each has one."""
    schemas: Mapping[str, CollectionSchema] = {}
    """By collection, the schema that its source announced last."""
    fate_handlers: dict[int, list[tuple[MessageId, FateHandler]]] = {}
    parts: "Sequence[Span]" = ()
    """The spans that were joined into this one for a `write`, in order. Only they are in the ledger."""

    def __len__(self) -> int:
        return len(self.positions)

    def position(self, sequence: int) -> bytes:
        return self.positions[sequence - self.first]

    def part(self, sequence: int) -> "Span":
        """Return the span that the ledger has for this message."""
        return self.parts[bisect_right(self.parts, sequence, key=lambda part: part.first) - 1] if self.parts else self


class Batch:
    """Messages of one span, in source order. `records[i]` is the value of the message `ids[i]`.

    The boundaries of a batch have no meaning. Filtering, splitting or cutting a batch makes another
    batch in which every message keeps its identity.

    A batch holds records, only payloads, or a table of payloads. To ask for what it holds saves making the others.
    """

    __slots__ = ("_columns", "_payloads", "_records", "count", "holds_records", "kind", "pieces", "sequences", "span")

    def __init__(
        self,
        span: Span,
        records: list[Record],
        sequences: Sequence[int],
        pieces: Sequence[Piece] | None = None,
    ) -> None:
        assert len(records) == len(sequences)
        assert pieces is None or len(pieces) == len(records)
        self.count = len(records)
        """The number of messages, which never changes. Without a call, for what runs several times for every batch."""
        self.span = span
        self._records: list[Record] | None = records
        self.holds_records = True
        """False if it holds only payloads, or a table."""
        self._payloads: list[Any] | TableRows | None = None
        self._columns: Columns | None = None
        self.kind: type | None = None
        """The type of all payloads; None if it is not known, or if the batch holds records."""
        self.sequences = sequences
        self.pieces = pieces

    @classmethod
    def of_payloads(
        cls,
        span: Span,
        payloads: list[Any] | TableRows,
        sequences: Sequence[int],
        pieces: Sequence[Piece] | None = None,
        kind: type | None = None,
        columns: "Columns | None" = None,
    ) -> "Batch":
        """Make a batch without records. `kind` is the type of all payloads, if that is known."""
        batch = cls.__new__(cls)
        batch.count = len(payloads)
        assert batch.count == len(sequences)
        batch.span = span
        batch._records, batch.holds_records = None, False
        batch._payloads, batch._columns = payloads, columns
        batch.kind = kind
        batch.sequences = sequences
        batch.pieces = pieces
        return batch

    @classmethod
    def whole(cls, span: Span, records: list[Record] | Payloads) -> "Batch":
        """Make the first batch of a span: every message, none of them split."""
        if isinstance(records, list):
            return cls(span, records, range(span.first, span.first + len(records)))
        sequences = range(span.first, span.first + len(records.payloads))
        return cls.of_payloads(span, records.payloads, sequences, None, records.kind, records.columns)

    @property
    def records(self) -> list[Record]:
        """The records. A batch without them makes them now, once, and is a batch of records from then on."""
        if self._records is None:
            assert self._payloads is not None
            self._records = make_records(self.positions, self._payloads, self.kind, self._columns)
            self._payloads = self._columns = self.kind = None
            self.holds_records = True
        return self._records

    @property
    def payloads(self) -> list[Any]:
        """The `payload.after` of every message, without making records: bytes, a dict, None, or a typed value."""
        payloads = self._payloads
        if payloads is None:
            return [record.payload.after for record in self.records]
        if type(payloads) is TableRows:
            # It holds no table from now on: the dicts may change. Its own list: a copy may hold the same rows.
            payloads = self._payloads = list(payloads.make())
        return payloads  # type: ignore[return-value]

    @property
    def table(self) -> "pa.Table | None":
        """The `pyarrow.Table` whose row i is `payload.after` of message i; None if the batch holds no table.

        A batch holds a table if its source returned one and only Arrow processors have seen it. It holds none after
        `records` or `payloads` was used, which are there in every batch.
        """
        return self._payloads.table if isinstance(self._payloads, TableRows) else None

    @property
    def columns(self) -> Columns | None:
        """The other parts of a batch of payloads; None if all have the default, or if the batch holds records."""
        return self._columns

    @property
    def source(self) -> str:
        """The source that the records came from."""
        return self.span.origin or self.span.source

    def __len__(self) -> int:
        # Not of `sequences`, which may have to be counted.
        values = self._records if self._payloads is None else self._payloads
        assert values is not None
        return len(values)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def record(self, index: int) -> Record:
        """Return one record, and leave a batch of payloads as it is: one dead letter must not cost all the others."""
        return self.records[index] if self._payloads is None else self.select((index,)).records[0]

    def messages(self) -> "Iterator[BatchMessage]":
        """Each message with its index, its record and its identity, in order."""
        return (BatchMessage(self, index) for index in range(len(self)))

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
        """Return the messages at these indices, which must be ascending, with their identities."""
        values = self._records if self._payloads is None else self._payloads
        assert values is not None
        return self.split(take(values, indices), indices, self.pieces and take(self.pieces, indices))

    def copy(self, *, deep: bool) -> "Batch":
        """Return the batch with its own list of values; with `deep`, they share nothing mutable with these."""
        make = (lambda column: list(map(copy_value, column))) if deep else list
        if self._payloads is None:
            return Batch(self.span, make(self.records), self.sequences, self.pieces)
        # What a lazy column makes is never shared.
        columns = self._columns and self._columns.map(lambda each: each if isinstance(each, LazyColumn) else make(each))
        rows = self._payloads
        own = make(rows) if isinstance(rows, list) else rows.copy(deep=deep)
        return Batch.of_payloads(self.span, own, self.sequences, self.pieces, self.kind, columns)

    def with_values(self, values: list[Any] | TableRows, kind: type | None = None) -> "Batch":
        """Return the same messages with other values: records if this batch holds records, else payloads.

        `kind` is the type of all payloads, if that is known.
        """
        if self._payloads is None:
            assert isinstance(values, list), "records"
            return Batch(self.span, values, self.sequences, self.pieces)
        return Batch.of_payloads(self.span, values, self.sequences, self.pieces, kind, self._columns)

    def without(self, gone: Sequence[int], values: list[Any] | TableRows, kind: type | None = None) -> "Batch":
        """Return all messages but those at these indices, which must ascend, with these values in place of theirs."""
        kept: Sequence[int] = NumbersWithout(self.sequences, gone)
        if self.pieces is None and self._columns is None:
            return self._of(values, kept, None, None, kind)
        places = NumbersWithout(range(len(self)), gone)
        columns = self._columns and self._columns.map(lambda column: take(column, places))
        return self._of(values, kept, self.pieces and take(self.pieces, places), columns, kind)

    def split(self, values: list[Any] | TableRows, indices: Sequence[int], pieces: Sequence[Piece] | None) -> "Batch":
        """Return the messages at these indices, which may repeat, with these values and as these pieces."""
        columns = self._columns and self._columns.map(lambda column: take(column, indices))
        kind = kind_of(set(map(type, values))) if isinstance(values, list) else dict
        return self._of(values, take(self.sequences, indices), pieces, columns, kind)

    def _of(
        self, values: list[Any] | TableRows, sequences: Sequence[int], pieces: Sequence[Piece] | None,
        columns: Columns | None, kind: type | None,
    ) -> "Batch":  # fmt: skip
        if self._payloads is None:
            assert isinstance(values, list), "records"
            return Batch(self.span, values, sequences, pieces)
        return Batch.of_payloads(self.span, values, sequences, pieces, kind, columns)

    def delivery_key(self, index: int) -> bytes:
        """Return 128 bits that identify this message on every attempt and after every restart.

        The key depends on the pipeline, the source, the position and the piece, never on batch boundaries
        or on the run. A destination that stores it can make its side effects idempotent. If several
        pipelines share the work of a source, its scope replaces pipeline and source.
        """
        # I10: nothing but the pipeline and the input goes into the key, or a restart would change it.
        position = self.span.position(self.sequences[index])
        names = [name.encode() for name in self.owner]
        return delivery_key([*names, position, ".".join(map(str, self.piece(index))).encode()])

    @property
    def owner(self) -> tuple[str, str]:
        """The namespace of the positions: a pipeline and a source, or "" and a scope."""
        span = self.span
        # No pipeline has an empty name, so the two kinds of owner never collide.
        return ("", span.scope) if span.scope else (span.pipeline, span.origin or span.source)

    @property
    def positions(self) -> Sequence[bytes]:
        """The position of every message. Owner, position and piece identify a message as the delivery key does."""
        span, sequences = self.span, self.sequences
        # The usual batch is a whole span, for which no list is built.
        if sequences == range(span.first, span.first + len(span.positions)):
            return span.positions
        return [span.positions[sequence - span.first] for sequence in sequences]

    def schema(self, index: int) -> CollectionSchema | None:
        """Return the schema of the collection of a record, as its source announced it; None if it did not.

        It describes the payload that the source made. Processors may have changed the payload since.
        """
        schemas = self.span.schemas
        return schemas.get(self.record(index).metadata.get(metadata.COLLECTION, "")) if schemas else None

    def on_fate(self, index: int, handler: FateHandler) -> None:
        """Call `handler` once when the message at `index` is settled; the last registered is called first.

        A piece of a split record is settled when its whole record is.
        """
        message = self.id(index)
        self.span.part(message.sequence).fate_handlers.setdefault(message.sequence, []).append((message, handler))


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One message of a batch. Its identity is computed when it is asked for: most destinations need only the record."""

    batch: Batch
    index: int

    @property
    def record(self) -> Record:
        return self.batch.records[self.index]

    @property
    def id(self) -> MessageId:
        return self.batch.id(self.index)

    @property
    def delivery_key(self) -> bytes:
        """128 bits that name the message on every attempt and after every restart."""
        return self.batch.delivery_key(self.index)


def delivery_key(parts: Iterable[bytes]) -> bytes:
    """A pure function of what is given, in this order: of the owner and the inputs that were consumed (I10)."""
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    text = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return hashlib.blake2b(text, digest_size=16).digest()
