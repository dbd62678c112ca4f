"""Turns the rows of a transaction into records."""

from typing import Any, Final

import msgspec

from conduit_connectors.mysql.binlog_events import BinlogEvent, GroupStart, Gtid
from conduit_connectors.mysql.row_values import ExactRow, LoggedRowDecoder
from conduit_py.sdk import FatalError, Operation, Payload, Record, encode_json, metadata

GTID: Final = "mysql.gtid"
SERVER_ID: Final = "mysql.server_id"
TEXT_COLUMNS: Final = "mysql.text"
"""A JSON object: the type of each column whose value is MariaDB's text for it."""


class LoggedTable(msgspec.Struct, frozen=True):
    """A table with the columns that the rows of this statement have."""

    collection: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    decoder: LoggedRowDecoder


class LoggedTransaction(msgspec.Struct):
    """The transaction whose events are arriving."""

    gtid: Gtid
    standalone: bool
    prepared: bool
    metadata: dict[str, str]
    events: int = 0
    """How many events with rows, and statements, it had."""
    given: bool = False
    """True if it has rows that are given."""
    ended: bool = False

    @classmethod
    def of(cls, event: BinlogEvent, start: GroupStart) -> "LoggedTransaction":
        about = {
            metadata.CREATED_AT: str(event.timestamp * 1_000_000_000),
            GTID: str(start.gtid),
            SERVER_ID: str(event.server_id),
        }
        return cls(start.gtid, start.standalone, start.prepared, about)


def records_of_row(
    table: LoggedTable, before: ExactRow | None, after: ExactRow | None, about: dict[str, str]
) -> list[Record]:
    """Return the records of the change of one row: two if it changed the key."""
    if before is None:
        assert after is not None, "a change has a row before or after it"
        if len(after.values) < len(table.columns):
            raise _incomplete(table, "a new row without all of its columns")
        return [_record(Operation.CREATE, table, about, after=after)]
    old_key = key_of(before.values, table.key)
    if table.key and old_key is None:
        raise _incomplete(table, "a change without the key of its row")
    if after is None:
        return [_record(Operation.DELETE, table, about, before=before)]
    # The image after a change may lack columns that are the same before.
    values = {name: image[name] for name in table.columns for image in (after.values, before.values) if name in image}
    values = {name: after.values.get(name, values[name]) for name in values}
    kept = {name: kind for name, kind in (before.kept | after.kept).items() if _keeps(name, before, after)}
    whole = ExactRow(values, kept)
    if old_key == key_of(values, table.key):
        return [_record(Operation.UPDATE, table, about, before=before, after=whole)]
    # With one record, a destination that has a row for each key would have both rows.
    return [
        _record(Operation.DELETE, table, about, before=before),
        _record(Operation.CREATE, table, about, after=whole),
    ]


def truncate_record(collection: str, about: dict[str, str]) -> Record:
    """Return the record that says that all rows of a table were deleted."""
    return Record(b"", Operation.DELETE, about | {metadata.COLLECTION: collection, metadata.TRUNCATE: "true"})


def snapshot_record(collection: str, key: tuple[str, ...], row: ExactRow) -> Record:
    about = {metadata.COLLECTION: collection} | _describe(row)
    return Record(b"", Operation.SNAPSHOT, about, key_of(row.values, key), Payload(after=row.values))


def key_of(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the key of a row; None if the table has none, or if the row does not have all of it."""
    return {name: values[name] for name in names} if names and all(name in values for name in names) else None


def _record(
    operation: Operation,
    table: LoggedTable,
    about: dict[str, str],
    *,
    before: ExactRow | None = None,
    after: ExactRow | None = None,
) -> Record:
    row = after or before
    assert row is not None, "a change has a row before or after it"
    about = about | {metadata.COLLECTION: table.collection} | _describe(row)
    if after is not None and len(after.values) < len(table.columns):
        absent = [name for name in table.columns if name not in after.values]
        about[metadata.UNCHANGED_FIELDS] = encode_json(absent).decode()
    payload = Payload(None if before is None else before.values, None if after is None else after.values)
    return Record(b"", operation, about, key_of(row.values, table.key), payload)


def _describe(row: ExactRow) -> dict[str, str]:
    return {TEXT_COLUMNS: encode_json(row.kept).decode()} if row.kept else {}


def _keeps(name: str, before: ExactRow, after: ExactRow) -> bool:
    return name in (after.kept if name in after.values else before.kept)


def _incomplete(table: LoggedTable, what: str) -> FatalError:
    return FatalError(
        f"the log has {what}, in {table.collection}",
        suggestion="set binlog_row_image = FULL for all sessions, reset the position of the source, and read"
        " everything again",
    )
