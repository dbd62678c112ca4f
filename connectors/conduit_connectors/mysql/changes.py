"""Turns the rows of a transaction into records."""

from typing import Final

import msgspec

from conduit_connectors.change_queue import ChangeOrigin, ReadyChange, key_of
from conduit_connectors.mysql.binlog_events import BinlogEvent, GroupStart, Gtid
from conduit_connectors.mysql.position import BinlogPosition, GtidState
from conduit_connectors.mysql.row_values import ExactRow, LoggedRowDecoder
from conduit_py.sdk import CollectionSchema, FatalError, Operation, encode_json, metadata

GTID: Final = "mysql.gtid"
SERVER_ID: Final = "mysql.server_id"
TEXT_COLUMNS: Final = "mysql.text"
"""A JSON object: the type of each column whose value is MariaDB's text for it."""


class LoggedTable(msgspec.Struct, frozen=True):
    """A table with the columns that the rows of this statement have."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    decoder: LoggedRowDecoder
    schema: CollectionSchema

    @property
    def collection(self) -> str:
        return self.schema.collection


LoggedChange = ReadyChange[BinlogPosition]


class LoggedTransaction(msgspec.Struct):
    """The transaction whose events are arriving."""

    gtid: Gtid
    standalone: bool
    prepared: bool
    metadata: dict[str, str]
    name: str
    """`gtid` as a position has it."""
    before: str
    """The transactions before it, as a position has them."""
    events: int = 0
    """How many events with rows, and statements, it had."""
    given: bool = False
    """True if it has rows that are given."""
    ended: bool = False

    @classmethod
    def of(cls, event: BinlogEvent, start: GroupStart, before: GtidState) -> "LoggedTransaction":
        about = {
            metadata.CREATED_AT: str(event.timestamp * 1_000_000_000),
            GTID: str(start.gtid),
            SERVER_ID: str(event.server_id),
        }
        return cls(start.gtid, start.standalone, start.prepared, about, about[GTID], str(before))


def changes_of_row(
    table: LoggedTable, before: ExactRow | None, after: ExactRow | None, origin: ChangeOrigin, at: BinlogPosition
) -> list[LoggedChange]:
    """Return the changes of one row: two if its key is another one."""
    if before is None:
        assert after is not None, "a change has a row before or after it"
        if len(after.values) < len(table.columns):
            raise _incomplete(table, "a new row without all of its columns")
        return [_change(Operation.CREATE, table, origin, at, after=after)]
    old_key = key_of(before.values, table.key)
    if table.key and old_key is None:
        raise _incomplete(table, "a change without the key of its row")
    if after is None:
        return [_change(Operation.DELETE, table, origin, at, before=before)]
    whole = _complete(table, before, after)
    if old_key == key_of(whole.values, table.key):
        return [_change(Operation.UPDATE, table, origin, at, before=before, after=whole)]
    # With one record, a destination that has a row for each key would have both rows.
    return [
        _change(Operation.DELETE, table, origin, at, before=before),
        _change(Operation.CREATE, table, origin, msgspec.structs.replace(at, part=1), after=whole),
    ]


def _complete(table: LoggedTable, before: ExactRow, after: ExactRow) -> ExactRow:
    """Return the row after a change, whose image may lack columns that are the same before."""
    if len(after.values) == len(table.columns):
        return after
    images = (after.values, before.values)
    values = {name: image[name] for name in table.columns for image in images if name in image}
    values = {name: after.values.get(name, values[name]) for name in values}
    kept = {name: kind for name, kind in (before.kept | after.kept).items() if _keeps(name, before, after)}
    return ExactRow(values, kept)


def truncate_change(collection: str, shared: dict[str, str], at: BinlogPosition) -> LoggedChange:
    """Return the change that says that all rows of a table were deleted."""
    notes = {metadata.COLLECTION: collection, metadata.TRUNCATE: "true"}
    return ReadyChange(Operation.DELETE, ChangeOrigin(shared, None, notes), at)


def snapshot_change(schema: CollectionSchema, key: tuple[str, ...], row: ExactRow, at: BinlogPosition) -> LoggedChange:
    """Return a row of a snapshot."""
    origin = ChangeOrigin({}, schema).noting(_describe(row))
    return ReadyChange(Operation.SNAPSHOT, origin, at, key_of(row.values, key), None, row.values)


def _change(
    operation: Operation,
    table: LoggedTable,
    origin: ChangeOrigin,
    at: BinlogPosition,
    *,
    before: ExactRow | None = None,
    after: ExactRow | None = None,
) -> LoggedChange:
    row = after or before
    assert row is not None, "a change has a row before or after it"
    notes = _describe(row)
    if after is not None and len(after.values) < len(table.columns):
        absent = [name for name in table.columns if name not in after.values]
        notes[metadata.UNCHANGED_FIELDS] = encode_json(absent).decode()
    old, new = None if before is None else before.values, None if after is None else after.values
    return ReadyChange(operation, origin.noting(notes), at, key_of(row.values, table.key), old, new)


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
