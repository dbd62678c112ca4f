"""Positions of the spark source: a row of a staged snapshot, or the values that a table is ordered by."""

from collections.abc import Sequence

import msgspec

from conduit_py.sdk import foreign_position


class SnapshotPosition(msgspec.Struct, frozen=True, tag="staged"):
    """A row of a segment of a snapshot."""

    snapshot: str
    segment: int
    row: int


class OrderedPosition(msgspec.Struct, frozen=True, tag="ordered"):
    """The values, as text, of the columns that rows are ordered by."""

    values: tuple[str, ...]


_PREFIX = b"spark:1:"
_decode = msgspec.json.Decoder(SnapshotPosition | OrderedPosition).decode


def encode(position: SnapshotPosition | OrderedPosition) -> bytes:
    return _PREFIX + msgspec.json.encode(position)


def staged_positions(snapshot: str, segment: int, rows: Sequence[int]) -> list[bytes]:
    """The positions of consecutive rows; formatting is many times cheaper than encoding each."""
    [before, after] = encode(SnapshotPosition(snapshot, segment, -1)).replace(b"%", b"%%").rsplit(b"-1", 1)
    template = before + b"%d" + after
    return [template % row for row in rows]


def decode(position: bytes) -> SnapshotPosition | OrderedPosition:
    """The position of a record; one of another connector is a FatalError."""
    text = position.removeprefix(_PREFIX)
    try:
        if text == position:
            raise ValueError
        found: SnapshotPosition | OrderedPosition = _decode(text)
    except (msgspec.MsgspecError, ValueError):
        raise foreign_position(position, "the spark source") from None
    return found
