"""Resume: the position from which a source goes on after an offset of Spark's checkpoint."""

from typing import Any

from conduit_py import sdk
from conduit_py.errors import FatalError
from conduit_py.spark.format.feed import drawn
from conduit_py.spark.format.offset import BEGINNING, Offset


def position_after(source: sdk.Source[Any], offset: Offset) -> bytes | None:
    """That of the last record before the offset; None at the beginning.

    Where parts end is told only by reading the last of them. That is done when a query starts again.
    """
    if offset == BEGINNING or offset.after:
        return offset.position
    for part in reversed(offset.split):
        position = None
        for each in drawn(source.fresh(), part):
            position = each.record.position
        if position is not None:
            return position
    raise FatalError(
        "where the last batch ended cannot be told, for there is no record in its parts",
        suggestion="start with a new checkpointLocation",
    )
