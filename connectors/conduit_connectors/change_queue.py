"""ChangeQueue: the changes of a database that the next `read` of its source may return, as a reading in columns.

A change costs little here, because its metadata and its position are made only if somebody asks for them.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from conduit_py.sdk import (
    CollectionSchema,
    Columns,
    EncodedPositions,
    LazyColumn,
    Operation,
    Payloads,
    Reading,
    SchemaField,
    metadata,
)


class LogPosition(Protocol):
    """Where a source is in the log of its database. It is never changed."""

    def encode(self) -> bytes: ...


class ChangeOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where changes come from: one object for all that a transaction does to a table. Nobody changes its maps."""

    shared: dict[str, str]
    """The metadata that all changes of a transaction have."""
    schema: CollectionSchema | None
    """None if the columns of the table are not known. Then `notes` has the collection."""
    notes: dict[str, str] | None = None
    """The metadata of a single change."""

    def noting(self, notes: dict[str, str]) -> "ChangeOrigin":
        """Return the origin of a change that has more metadata."""
        return ChangeOrigin(self.shared, self.schema, notes) if notes else self


PositionT = TypeVar("PositionT", bound=LogPosition)


class ReadyChange(msgspec.Struct, Generic[PositionT], gc=False):
    """A change with its position, which is not a record yet."""

    operation: Operation
    origin: ChangeOrigin
    position: PositionT
    key: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    ends: bool = False
    """False if more of its transaction follows."""


class ChangeQueue(Generic[PositionT]):
    """Changes in the order of the log. The last one of a transaction is held back until its end is here."""

    def __init__(self) -> None:
        self._changes: list[ReadyChange[PositionT]] = []
        self._held = 0
        self._taken = 0
        """How many were taken so far."""
        self._schemas: dict[str, CollectionSchema] = {}
        self._schema: CollectionSchema | None = None
        """The schema of the last change."""
        self._news: deque[tuple[int, CollectionSchema]] = deque()
        """The number of each change whose schema is another one than that of the change of its table before it."""

    def __len__(self) -> int:
        return len(self._changes) - self._held

    def hold(self, change: ReadyChange[PositionT]) -> None:
        """Add a change, and hold it back until it is certain whether it is the last one of its transaction."""
        if change.origin.schema is not self._schema:
            self._meet(change.origin.schema)
        self._changes.append(change)
        self._held = 1

    def append(self, change: ReadyChange[PositionT]) -> None:
        """Add a change that `ends` its transaction, such as a row of a snapshot."""
        self.hold(change)
        change.ends = True
        self._held = 0

    def release(self, end: PositionT) -> bool:
        """End the transaction: the change that is held back is its last one, and gets this position."""
        if not self._held:
            return False
        last = self._changes[-1]
        last.position, last.ends = end, True
        self._held = 0
        return True

    def take(self, n: int) -> tuple[Reading, bytes]:
        """Remove and return at most `n` records: whole transactions, or a part of one and nothing else.

        With the position of the last one. A table has one schema in them, which is announced if it is new.
        """
        changes = self._changes
        most = min(n, len(self))
        if self._news:
            most = self._schema_stop(most)
        stop = next((count for count in range(most, 0, -1) if changes[count - 1].ends), most)
        given = changes[:stop]
        del changes[:stop]
        self._taken += stop
        schemas: list[CollectionSchema] = []
        while self._news and self._news[0][0] < self._taken:
            schemas.append(self._news.popleft()[1])
        last = given[-1]
        return Reading(in_columns(given), continues=not last.ends, schemas=tuple(schemas)), last.position.encode()

    def move(self, change: Callable[[PositionT], PositionT]) -> None:
        """Change the positions of all that is not taken yet."""
        for each in self._changes:
            each.position = change(each.position)

    def _meet(self, schema: CollectionSchema | None) -> None:
        if schema is None:
            return
        self._schema = schema
        if self._schemas.get(schema.collection) != schema:
            self._schemas[schema.collection] = schema
            self._news.append((self._taken + len(self._changes), schema))

    def _schema_stop(self, most: int) -> int:
        """Return how many may be in one reading: no record of a table from before its schema changed."""
        for number, schema in self._news:
            index = number - self._taken
            if index >= most:
                break
            if any(
                each.origin.schema and each.origin.schema.collection == schema.collection
                for each in self._changes[:index]
            ):
                return index
        return most


def in_columns(changes: Sequence[ReadyChange[PositionT]]) -> Payloads:
    """Return changes as the records of a reading."""
    payloads = list(map(_AFTER, changes))
    operations = list(map(_OPERATION, changes))
    befores = list(map(_BEFORE, changes))
    columns = Columns(
        keys=list(map(_KEY, changes)),
        metadata=LazyColumn(list(map(_ORIGIN, changes)), make_metadata),
        operations=operations,
        befores=None if befores.count(None) == len(befores) else befores,
    )
    # A delete has no payload.
    kind = None if None in payloads else dict
    return Payloads(payloads, EncodedPositions(list(map(_POSITION, changes))), kind, columns)


_AFTER, _BEFORE, _KEY, _OPERATION, _ORIGIN, _POSITION = (
    attrgetter(name) for name in ("after", "before", "key", "operation", "origin", "position")
)


def make_metadata(origin: ChangeOrigin) -> dict[str, str]:
    """Return the metadata of a change, which belongs to its record."""
    made = dict(origin.shared)
    if origin.schema is not None:
        made[metadata.COLLECTION] = origin.schema.collection
        made[metadata.PAYLOAD_SCHEMA_VERSION] = origin.schema.version
    return made | origin.notes if origin.notes else made


def make_schema(collection: str, fields: Sequence[SchemaField]) -> CollectionSchema:
    """Return the schema of a table. The same fields have the same version in every run."""
    version = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:16]
    return CollectionSchema(collection, version, tuple(fields))


def key_of(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the key of a row; None if the table has none, or if the row does not have all of it."""
    try:
        if len(names) == 1:
            # Most keys: a comprehension costs three times as much.
            return {names[0]: values[names[0]]}
        return {name: values[name] for name in names} if names else None
    except KeyError:
        return None
