"""Turns the changes of a transaction into records."""

import sys
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

import msgspec

from conduit_connectors.change_queue import ChangeOrigin, ChangeQueue, PositionT, ReadyChange, key_of
from conduit_connectors.postgres.pgoutput import (
    BeginMessage,
    DeleteMessage,
    InsertMessage,
    RelationMessage,
    RowValues,
    UnchangedValue,
    UpdateMessage,
)
from conduit_connectors.postgres.position import SourcePosition
from conduit_connectors.postgres.replication import EPOCH_MICROSECONDS, format_lsn
from conduit_connectors.postgres.row_decoder import NOT_READ, DecodedRow
from conduit_connectors.postgres.schemas import TableShape
from conduit_py.sdk import Operation, encode_json, metadata

XID: Final = "postgres.xid"
LSN: Final = "postgres.lsn"
ORIGIN: Final = "postgres.origin"
UNCHANGED_COLUMNS: Final = "postgres.unchanged"
"""The same as `metadata.UNCHANGED_FIELDS`: large values that an update left alone, which the server did not send."""
TEXT_COLUMNS: Final = "postgres.text"
"""A JSON object: the type of each column whose value is PostgreSQL's text for it."""
TRUNCATE: Final = "postgres.truncate"
"""The same as `metadata.TRUNCATE`."""

RowKey = tuple[bytes, ...]
"""The values of the key of a row, in PostgreSQL's text form."""

RowChange = InsertMessage | UpdateMessage | DeleteMessage
Change = ReadyChange[SourcePosition]


class PublishedRelation:
    """A table with the columns that the changes have from now on."""

    def __init__(self, message: RelationMessage, shape: TableShape, key: tuple[str, ...]) -> None:
        self.oid = message.oid
        self.collection = shape.schema.collection
        self.decoder = shape.decoder
        self.columns = shape.columns
        self._schema = shape.schema
        self._origin = ChangeOrigin({}, None)
        self._indexes = {column.name: index for index, column in enumerate(message.columns)}
        # A column of the key that was renamed since, or that is not published, is not in the changes.
        self.key = key if all(name in self._indexes for name in key) else ()

    def key_values(self, row: RowValues, names: tuple[str, ...]) -> RowKey | None:
        """Return the values of these columns; None if the row does not have all of them."""
        values = [row[self._indexes[name]] if name in self._indexes else None for name in names]
        found = tuple([value for value in values if isinstance(value, bytes)])
        return found if len(found) == len(values) else None

    def origin(self, transaction: "OpenTransaction") -> ChangeOrigin:
        """Return the origin of the changes that a transaction makes to this table."""
        if self._origin.shared is not transaction.metadata:
            self._origin = ChangeOrigin(transaction.metadata, self._schema)
        return self._origin


NOTHING_GIVEN: Final = (-1, 0)
ALL_GIVEN: Final = (sys.maxsize, 0)


class OpenTransaction(msgspec.Struct):
    """The transaction whose changes are arriving."""

    commit_lsn: int
    xid: int
    lsn: str
    """`commit_lsn` as PostgreSQL writes it."""
    metadata: dict[str, str]
    given_until: tuple[int, int] = NOTHING_GIVEN
    """Earlier runs gave the changes up to this number, and the records of that change up to this part."""
    changes: int = 0

    @classmethod
    def of(cls, begin: BeginMessage) -> "OpenTransaction":
        created_at, lsn = (begin.committed_at + EPOCH_MICROSECONDS) * 1000, format_lsn(begin.commit_lsn)
        about = {metadata.CREATED_AT: str(created_at), XID: str(begin.xid), LSN: lsn}
        return cls(begin.commit_lsn, begin.xid, lsn, about)

    def has_given(self, at: SourcePosition) -> bool:
        """True if an earlier run gave this record."""
        # Invariant 11: the end of that run may have cut the transaction after its first records.
        return (at.index or 0, at.part) <= self.given_until


def changes_of_message(
    message: RowChange, relation: PublishedRelation, origin: ChangeOrigin, at: SourcePosition
) -> list[Change]:
    """Return the changes of a message: two if it changed the key of a row. ValueError if a value is not UTF-8."""
    if isinstance(message, InsertMessage):
        return [_change(Operation.CREATE, relation, origin, at, after=relation.decoder.decode(message.after))]
    before = None if message.before is None else _before(relation, message.before, key_only=message.key_only)
    if isinstance(message, DeleteMessage):
        return [_change(Operation.DELETE, relation, origin, at, before=before)]
    if message.before is None:
        return [_change(Operation.UPDATE, relation, origin, at, after=relation.decoder.decode(message.after))]
    # The server does not send a large value again that it sent in the row before.
    pairs = zip(message.after, message.before, strict=True)
    row = tuple([old if isinstance(new, UnchangedValue) and old is not None else new for new, old in pairs])
    after = relation.decoder.decode(row)
    old_key, new_key = (relation.key_values(each, relation.key) for each in (message.before, row))
    if not relation.key or old_key == new_key:
        return [_change(Operation.UPDATE, relation, origin, at, before=before, after=after)]
    # With one record, a destination that has a row for each key would have both rows.
    return [
        _change(Operation.DELETE, relation, origin, at, before=before),
        _change(Operation.CREATE, relation, origin, msgspec.structs.replace(at, part=1), after=after),
    ]


def changed_rows(message: RowChange) -> list[RowValues]:
    """Return the versions of the row in a change."""
    versions = (getattr(message, "before", None), getattr(message, "after", None))
    return [row for row in versions if row is not None]


def hold_usual_change(
    data: bytes,
    relations: Mapping[int, PublishedRelation | None],
    transaction: OpenTransaction,
    at: SourcePosition,
    ready: ChangeQueue[SourcePosition],
) -> bool:
    """Add the change of a frame, in one pass from its bytes to values. False if it is not as most frames are.

    Then the frame must be parsed: it is malformed, or `changes_of_message` returns its changes. Where this function
    adds a change, that one returns the same.
    """
    try:
        frame, kind, oid, mark, count = _HEAD(data)
        operation, relation = _USUAL.get(kind << 8 | mark), relations.get(oid)
        if frame != _XLOG_DATA or operation is None or relation is None:
            return False
        decoder = relation.decoder
        values, unchanged, end = decoder.read(data, _ROW)
    except NOT_READ:
        return False
    if end != len(data) or count != decoder.width:
        return False
    if mark == _KEY:
        values = _only_key(values, relation)
    origin, key = relation.origin(transaction), key_of(values, relation.key)
    if unchanged or decoder.always_kept:
        origin = origin.noting(_notes(values, unchanged, decoder.always_kept))
    if operation is _DELETE:
        ready.hold(operation, origin, at, key, values, None)
    else:
        ready.hold(operation, origin, at, key, None, values)
    return True


_HEAD = Struct("!B24xBIBH").unpack_from
_ROW = 33
_DELETE = Operation.DELETE
_XLOG_DATA, _KEY = b"wK"
_USUAL = {
    int.from_bytes(kind, "big"): operation
    for kind, operation in {
        b"IN": Operation.CREATE,
        b"UN": Operation.UPDATE,
        b"DO": Operation.DELETE,
        b"DK": Operation.DELETE,
    }.items()
}


def truncate_change(origin: ChangeOrigin, at: SourcePosition) -> Change:
    """Return the change that says that all rows of a table were deleted."""
    return ReadyChange(Operation.DELETE, origin.noting({metadata.TRUNCATE: "true", TRUNCATE: "true"}), at)


def snapshot_change(shape: TableShape, key: tuple[str, ...], row: RowValues, at: PositionT) -> ReadyChange[PositionT]:
    """Return a row of a snapshot."""
    decoded = shape.decoder.decode(row)
    origin = ChangeOrigin({}, shape.schema).noting(_notes(decoded.values, decoded.unchanged, decoded.kept))
    return ReadyChange(Operation.SNAPSHOT, origin, at, key_of(decoded.values, key), None, decoded.values)


def _before(relation: PublishedRelation, row: RowValues, *, key_only: bool) -> DecodedRow:
    decoded = relation.decoder.decode(row)
    if key_only:
        decoded.values = _only_key(decoded.values, relation)
    return decoded


def _only_key(values: dict[str, Any], relation: PublishedRelation) -> dict[str, Any]:
    # The server sends NULL for the other columns, which says nothing about their values.
    return {name: values[name] for name in relation.key if name in values}


def _change(
    operation: Operation,
    relation: PublishedRelation,
    origin: ChangeOrigin,
    at: SourcePosition,
    *,
    before: DecodedRow | None = None,
    after: DecodedRow | None = None,
) -> Change:
    row = after or before
    assert row is not None, "a change has a row before or after it"
    origin = origin.noting(_notes(row.values, row.unchanged, row.kept))
    old, new = None if before is None else before.values, None if after is None else after.values
    return ReadyChange(operation, origin, at, key_of(row.values, relation.key), old, new)


def _notes(values: dict[str, Any], unchanged: list[str], kept: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that a row needs besides its values."""
    notes = {}
    if unchanged:
        notes[metadata.UNCHANGED_FIELDS] = notes[UNCHANGED_COLUMNS] = encode_json(unchanged).decode()
    texts = {name: kind for name, kind in kept.items() if values.get(name) is not None}
    if texts:
        notes[TEXT_COLUMNS] = encode_json(texts).decode()
    return notes
