"""ChangeQueue: the changes of a database that the next `read` of its source may return, as a reading in columns.

A change costs little here, because its metadata and its position are made only if somebody asks for them.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
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

    @property
    def parts(self) -> tuple[Any, ...]:
        """What `ChangeQueue.hold` takes."""
        return self.operation, self.origin, self.position, self.key, self.before, self.after


class ChangeQueue(Generic[PositionT]):
    """Changes in the order of the log, as columns. The last one of a transaction is held back until its end is here."""

    def __init__(self) -> None:
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self._operations, self._origins, self._positions, self._keys, self._befores, self._afters = self._columns
        self._ends: deque[int] = deque()
        """The numbers of the changes after which a transaction ends, counted from the first one that was ever here."""
        self._held = 0
        self._taken = 0
        """How many were taken so far."""
        self._schemas: dict[str, CollectionSchema] = {}
        self._schema: CollectionSchema | None = None
        """The schema of the last change."""
        self._news: deque[tuple[int, CollectionSchema]] = deque()
        """The number of each change whose schema is another one than that of the change of its table before it."""

    def __len__(self) -> int:
        return len(self._afters) - self._held

    def hold(
        self,
        operation: Operation,
        origin: ChangeOrigin,
        position: PositionT,
        key: dict[str, Any] | None,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        """Add a change, and hold it back until it is certain whether it is the last one of its transaction."""
        if origin.schema is not self._schema:
            self._meet(origin.schema)
        self._operations.append(operation)
        self._origins.append(origin)
        self._positions.append(position)
        self._keys.append(key)
        self._befores.append(before)
        self._afters.append(after)
        self._held = 1

    def append(self, change: ReadyChange[PositionT]) -> None:
        """Add a change that is a transaction of its own, such as a row of a snapshot."""
        self.hold(*change.parts)
        self.release(change.position)

    def release(self, end: PositionT) -> bool:
        """End the transaction: the change that is held back is its last one, and gets this position."""
        if not self._held:
            return False
        self._positions[-1] = end
        self._ends.append(self._taken + len(self._afters))
        self._held = 0
        return True

    def take(self, n: int) -> tuple[Reading, bytes]:
        """Remove and return at most `n` records: whole transactions, or a part of one and nothing else.

        With the position of the last one. A table has one schema in them, which is announced if it is new.
        """
        stop = min(n, len(self))
        if self._news:
            stop = self._schema_stop(stop)
        continues = True
        while self._ends and self._ends[0] <= self._taken + stop:
            last = self._ends.popleft()
            continues = False
        if not continues:
            stop = last - self._taken
        operations, origins, positions, keys, befores, afters = (column[:stop] for column in self._columns)
        for column in self._columns:
            del column[:stop]
        self._taken += stop
        schemas: list[CollectionSchema] = []
        while self._news and self._news[0][0] < self._taken:
            schemas.append(self._news.popleft()[1])
        records = _in_columns(operations, origins, positions, keys, befores, afters)
        return Reading(records, continues=continues, schemas=tuple(schemas)), positions[-1].encode()

    def move(self, change: Callable[[PositionT], PositionT]) -> None:
        """Change the positions of all that is not taken yet."""
        self._positions[:] = [change(position) for position in self._positions]

    def _meet(self, schema: CollectionSchema | None) -> None:
        if schema is None:
            return
        self._schema = schema
        if self._schemas.get(schema.collection) != schema:
            self._schemas[schema.collection] = schema
            self._news.append((self._taken + len(self._afters), schema))

    def _schema_stop(self, most: int) -> int:
        """Return how many may be in one reading: no record of a table from before its schema changed."""
        for number, schema in self._news:
            index = number - self._taken
            if index >= most:
                break
            before = (origin.schema for origin in self._origins[:index])
            if any(each is not None and each.collection == schema.collection for each in before):
                return index
        return most


def in_columns(changes: Sequence[ReadyChange[PositionT]]) -> Payloads:
    """Return changes as the records of a reading."""
    return _in_columns(*map(list, zip(*(change.parts for change in changes), strict=True)))


def _in_columns(
    operations: list[Operation],
    origins: list[ChangeOrigin],
    positions: list[Any],
    keys: list[Any],
    befores: list[Any],
    afters: list[Any],
) -> Payloads:
    columns = Columns(
        keys=keys,
        metadata=LazyColumn(origins, make_metadata),
        operations=operations,
        befores=None if befores.count(None) == len(befores) else befores,
    )
    # A delete has no payload.
    return Payloads(afters, EncodedPositions(positions), None if None in afters else dict, columns)


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
