"""ReadyRecords: the records that the next `read` of a source may return, each with its position."""

from collections import deque

import msgspec

from conduit_connectors.postgres.position import SourcePosition, TableProgress
from conduit_py.sdk import CollectionSchema, Reading, Record, metadata


class _Given(msgspec.Struct, gc=False):
    """A record that `read` may return. `ends` is False if more of its transaction follows."""

    record: Record
    ends: bool
    schema: CollectionSchema | None
    """The schema of its table, if it is another one than that of the record of the table before it."""


class ReadyRecords:
    """A queue of records in the order of the log. The last one of a transaction is held back until its end is here."""

    def __init__(self) -> None:
        self._queue: deque[_Given] = deque()
        self._held: tuple[Record, SourcePosition, CollectionSchema] | None = None
        self._schemas: dict[str, CollectionSchema] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, record: Record, at: SourcePosition, schema: CollectionSchema, *, ends: bool = True) -> None:
        """Add a record with its position. It `ends` its transaction, or is a row of a snapshot."""
        record.position = at.encode()
        known = self._schemas.get(schema.collection)
        # Identity first: nearly always it is the same one, and fields are slow to compare.
        if known is schema or known == schema:
            self._queue.append(_Given(record, ends, None))
        else:
            self._schemas[schema.collection] = schema
            self._queue.append(_Given(record, ends, schema))

    def hold(self, record: Record, within: SourcePosition, schema: CollectionSchema) -> None:
        """Hold a record back until it is certain whether it is the last one of its transaction."""
        self.release()
        self._held = record, within, schema

    def release(self, end: SourcePosition | None = None) -> bool:
        """Add the held record, if there is one. With `end` it is the last one, and that is its position."""
        if self._held is None:
            return False
        record, within, schema = self._held
        self.append(record, end or within, schema, ends=end is not None)
        self._held = None
        return True

    def take(self, n: int) -> Reading:
        """Remove and return at most `n` records: whole transactions, or a part of one and nothing else.

        A table has one schema in them, which is announced if it is new.
        """
        given = [self._queue.popleft() for _ in range(min(n, len(self._queue)))]
        stop = _schema_stop(given)
        stop = next((count for count in range(stop, 0, -1) if given[count - 1].ends), stop)
        self._queue.extendleft(reversed(given[stop:]))
        del given[stop:]
        schemas = tuple([each.schema for each in given if each.schema is not None])
        return Reading([each.record for each in given], continues=not given[-1].ends, schemas=schemas)

    def add_request(self, request: TableProgress) -> None:
        """Add a request to the position of every record, so that it is in the next one that is stored."""
        for each in self._queue:
            each.record.position = SourcePosition.decode(each.record.position).with_request(request).encode()
        if self._held is not None:
            record, within, schema = self._held
            self._held = record, within.with_request(request), schema


def _schema_stop(given: list[_Given]) -> int:
    """Return how many of these may be in one reading: no record of a table from before its schema changed."""
    for index in [index for index, each in enumerate(given) if each.schema is not None]:
        schema = given[index].schema
        assert schema is not None, "it was chosen by its schema"
        if any(each.record.metadata[metadata.COLLECTION] == schema.collection for each in given[:index]):
            return index
    return len(given)
