"""OrderedRows: a table read in chunks in the order of its key, each chunk one query for what follows the last row."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from conduit_connectors.spark.positions import OrderedPosition, encode
from conduit_py.sdk import FatalError
from conduit_py.sdk.arrow import rows_of, values_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TYPES = {"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz"}


class OrderedRows:
    """The rows of a table in the order of some columns, which together must be unique and never null.

    `read` finds what follows the last row, in any run. A key that is null or not unique is an error in the chunk that
    has it, because rows would be lost there.
    """

    def __init__(
        self, frame: "DataFrame", columns: Sequence[str], chunk_rows: int, after: OrderedPosition | None
    ) -> None:
        self._frame = frame
        self._columns = list(columns)
        self._chunk_rows = chunk_rows
        self._kinds = _kinds(frame, self._columns)
        if after is not None and len(after.values) != len(columns):
            raise FatalError(
                f"the position has {len(after.values)} values, and rows are now ordered by {', '.join(columns)}",
                suggestion="order by the columns of before, or give the source a new id to start afresh",
            )
        self._after = after.values if after is not None else None
        self._chunk: Any = None
        self._keys: list[tuple[str, ...]] = []
        self._row = 0

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The next rows, at most `n`, and their positions; none when there are none now."""
        if self._row >= len(self._keys):
            self._load()
        rows = rows_of(self._chunk.slice(self._row, n))
        keys = self._keys[self._row : self._row + len(rows)]
        self._row += len(rows)
        return rows, [encode(OrderedPosition(key)) for key in keys]

    def _load(self) -> None:
        """Get the next chunk, and check that its keys are unique before any row is returned."""
        frame = self._frame
        if self._after is not None:
            frame = frame.where(self._beyond(self._after))
        # One more than wanted: the next query would skip a row with the same key as the last one.
        chunk = frame.orderBy(*map(_quote, self._columns)).limit(self._chunk_rows + 1).toArrow()
        columns = [[_text(name, value) for value in values_of(chunk.column(name))] for name in self._columns]
        keys = list(zip(*columns, strict=True))
        for key, following in pairwise(keys):
            if key == following:
                raise FatalError(
                    f"several rows have {', '.join(self._columns)} = {', '.join(key)}, so one of them would be lost",
                    suggestion="order by columns that are unique together: add to `key`",
                )
        self._chunk, self._keys, self._row = chunk.slice(0, self._chunk_rows), keys[: self._chunk_rows], 0
        if keys:
            self._after = self._keys[-1]

    def _beyond(self, values: Sequence[str]) -> "Column":
        """Rows that come after these values: the first column is greater, or equal and the next is greater, …"""
        from pyspark.sql import functions

        columns = [functions.col(_quote(name)) for name in self._columns]
        limits = [functions.lit(value).cast(kind) for value, kind in zip(values, self._kinds, strict=True)]
        condition = columns[-1] > limits[-1]
        for column, limit in reversed(list(zip(columns[:-1], limits[:-1], strict=True))):
            condition = (column > limit) | ((column == limit) & condition)
        return condition


def _kinds(frame: "DataFrame", columns: Sequence[str]) -> list[str]:
    known = dict(frame.dtypes)
    kinds = []
    for name in columns:
        kind = known.get(name)
        if kind is None:
            raise FatalError(f"there is no column {name!r}", suggestion=f"columns are {', '.join(known)}")
        if kind not in _TYPES and not kind.startswith("decimal("):
            raise FatalError(
                f"column {name!r} is of type {kind}, which gives no exact order to resume in",
                suggestion="order by integers, decimals, text, dates or timestamps",
            )
        kinds.append(kind)
    return kinds


def _text(name: str, value: object) -> str:
    """A value as text that Spark casts to the same value."""
    if value is None:
        raise FatalError(
            f"a row has no {name}, so its place in the order is unknown",
            suggestion=f"leave such rows out: WHERE {name} IS NOT NULL",
        )
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    assert isinstance(value, int | str)
    return str(value)


def _quote(name: str) -> str:
    doubled = name.replace("`", "``")
    return f"`{doubled}`"
