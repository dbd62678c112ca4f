"""Offset: where a stream is, as JSON that Spark keeps in its checkpoint, and the position that follows from it."""

from base64 import b64decode, b64encode
from typing import Any, TypeAlias

import msgspec

from conduit_py import sdk
from conduit_py.errors import FatalError
from conduit_py.spark.datasource.open_source import read_all

Json: TypeAlias = dict[str, Any]


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """After the record at `after`, with `rows` records in the batch that it ends; or after the last of `parts`.

    A batch that is run again must have the same records: so the number of its records, or the parts that it was
    split into, are in the offset that ends it, whatever the limits and the number of cores are by then.
    """

    after: str = ""
    rows: int = 0
    parts: tuple[str, ...] = ()

    @classmethod
    def after_record(cls, position: bytes, rows: int) -> "Offset":
        return cls(after=b64encode(position).decode(), rows=rows)

    @classmethod
    def after_parts(cls, parts: list[bytes]) -> "Offset":
        return cls(parts=tuple(b64encode(part).decode() for part in parts))

    @property
    def position(self) -> bytes | None:
        """The position of the last record; None at the beginning."""
        return b64decode(self.after) if self.after else None

    @property
    def split(self) -> list[bytes]:
        return [b64decode(part) for part in self.parts]

    @classmethod
    def parse(cls, value: Json) -> "Offset":
        return msgspec.convert(value, cls)

    def to_json(self) -> Json:
        encoded: Json = msgspec.to_builtins(self)
        return encoded


BEGINNING = Offset()


def position_after(source: sdk.SourceConnector[Any], offset: Offset) -> bytes | None:
    """The position of the last record before the offset; None at the beginning.

    Only reading the last part shows where it ends. That is done when a query starts again.
    """
    if offset == BEGINNING or offset.after:
        return offset.position
    for part in reversed(offset.split):
        position = None
        for each in read_all(source.fresh(), part):
            position = each.record.position
        if position is not None:
            return position
    raise FatalError(
        "the end of the last batch is unknown: its parts have no record",
        suggestion="start with a new checkpointLocation",
    )
