"""Turns the changes of a transaction into records."""

from typing import Any, Final

import msgspec

from conduit_connectors.postgres.column_values import DecodedRow
from conduit_connectors.postgres.pgoutput import (
    BeginMessage,
    DeleteMessage,
    InsertMessage,
    RelationMessage,
    RowValues,
    UnchangedValue,
    UpdateMessage,
)
from conduit_connectors.postgres.replication import EPOCH_MICROSECONDS, format_lsn
from conduit_connectors.postgres.schemas import TableShape
from conduit_py.sdk import Operation, Payload, Record, encode_json, metadata

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


class PublishedRelation:
    """A table with the columns that the changes have from now on."""

    def __init__(self, message: RelationMessage, shape: TableShape, key: tuple[str, ...]) -> None:
        self.oid = message.oid
        self.collection = shape.schema.collection
        self.schema = shape.schema
        self.metadata = shape.metadata
        self.decoder = shape.decoder
        self.columns = shape.columns
        self._indexes = {column.name: index for index, column in enumerate(message.columns)}
        # A column of the key that was renamed since, or that is not published, is not in the changes.
        self.key = key if all(name in self._indexes for name in key) else ()

    def key_values(self, row: RowValues, names: tuple[str, ...]) -> RowKey | None:
        """Return the values of these columns; None if the row does not have all of them."""
        values = [row[self._indexes[name]] if name in self._indexes else None for name in names]
        return tuple(value for value in values if isinstance(value, bytes)) if _all_sent(values) else None


class OpenTransaction(msgspec.Struct):
    """The transaction whose changes are arriving."""

    commit_lsn: int
    xid: int
    metadata: dict[str, str]
    skipped: bool = False
    """True if the whole transaction was given by an earlier run."""
    changes: int = 0

    @classmethod
    def of(cls, begin: BeginMessage) -> "OpenTransaction":
        created_at = (begin.committed_at + EPOCH_MICROSECONDS) * 1000
        about = {metadata.CREATED_AT: str(created_at), XID: str(begin.xid), LSN: format_lsn(begin.commit_lsn)}
        return cls(begin.commit_lsn, begin.xid, about)


def records_of_change(
    change: InsertMessage | UpdateMessage | DeleteMessage, relation: PublishedRelation, about: dict[str, str]
) -> list[Record]:
    """Return the records of one change: two if it changed the key of a row. ValueError if a value is not UTF-8."""
    if isinstance(change, InsertMessage):
        after = relation.decoder.decode(change.after)
        return [_record(Operation.CREATE, relation, about, after=after)]
    if isinstance(change, DeleteMessage):
        before = _before(relation, change.before, key_only=change.key_only)
        return [_record(Operation.DELETE, relation, about, before=before)]
    return _update_records(change, relation, about)


def truncate_record(relation: PublishedRelation, about: dict[str, str]) -> Record:
    """Return the record that says that all rows of a table were deleted."""
    return Record(b"", Operation.DELETE, about | relation.metadata | {metadata.TRUNCATE: "true", TRUNCATE: "true"})


def changed_rows(change: InsertMessage | UpdateMessage | DeleteMessage) -> list[RowValues]:
    """Return the versions of the row in a change."""
    versions = (getattr(change, "before", None), getattr(change, "after", None))
    return [row for row in versions if row is not None]


def _update_records(change: UpdateMessage, relation: PublishedRelation, about: dict[str, str]) -> list[Record]:
    row = change.after
    if change.before is None:
        return [_record(Operation.UPDATE, relation, about, after=relation.decoder.decode(row))]
    # The server does not send a large value again that it sent in the row before.
    pairs = zip(row, change.before, strict=True)
    row = tuple(old if isinstance(new, UnchangedValue) and old is not None else new for new, old in pairs)
    after, before = relation.decoder.decode(row), _before(relation, change.before, key_only=change.key_only)
    old_key, new_key = (relation.key_values(each, relation.key) for each in (change.before, row))
    if not relation.key or old_key == new_key:
        return [_record(Operation.UPDATE, relation, about, before=before, after=after)]
    # With one record, a destination that has a row for each key would have both rows.
    return [
        _record(Operation.DELETE, relation, about, before=before),
        _record(Operation.CREATE, relation, about, after=after),
    ]


def _before(relation: PublishedRelation, row: RowValues, *, key_only: bool) -> DecodedRow:
    decoded = relation.decoder.decode(row)
    if key_only:
        # The server sends NULL for the other columns, which says nothing about their values.
        decoded.values = {name: decoded.values[name] for name in relation.key if name in decoded.values}
    return decoded


def _record(
    operation: Operation,
    relation: PublishedRelation,
    about: dict[str, str],
    *,
    before: DecodedRow | None = None,
    after: DecodedRow | None = None,
) -> Record:
    row = after or before
    assert row is not None, "a change has a row before or after it"
    payload = Payload(None if before is None else before.values, None if after is None else after.values)
    about = about | relation.metadata | describe_row(row)
    return Record(b"", operation, about, key_of(row.values, relation.key), payload)


def describe_row(row: DecodedRow) -> dict[str, str]:
    """Return the metadata that a row needs besides its values."""
    about = {}
    if row.unchanged:
        about[metadata.UNCHANGED_FIELDS] = about[UNCHANGED_COLUMNS] = encode_json(row.unchanged).decode()
    kept = {name: kind for name, kind in row.kept.items() if row.values.get(name) is not None}
    if kept:
        about[TEXT_COLUMNS] = encode_json(kept).decode()
    return about


def key_of(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the key of a row; None if the table has none."""
    return {name: values[name] for name in names} if names and all(name in values for name in names) else None


def _all_sent(values: list[Any]) -> bool:
    return all(isinstance(value, bytes) for value in values)
