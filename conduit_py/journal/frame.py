"""Frame: what one append put into a journal: messages that share one id, whole or not at all."""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from conduit_py.journal.clock import TICK
from conduit_py.journal.message_id import MessageId


class Frame:
    """Messages at `[begin, end)` of a journal. `bodies[i]` has the id `id.later(i)`.

    Offsets are those of whole frames: within a frame the ids tell the messages apart.
    """

    __slots__ = ("_bodies", "_packed", "begin", "count", "end", "id", "journal", "last_clock", "size")

    def __init__(self, journal: str, begin: int, end: int, id: MessageId, count: int, packed: bytes) -> None:
        self.journal = journal
        self.begin = begin
        self.end = end
        self.id = id
        self.count = count
        self.last_clock = id.clock + TICK * (count - 1)
        self.size = len(packed)
        self._packed = packed
        self._bodies: list[bytes] | None = None

    @property
    def bodies(self) -> list[bytes]:
        # Taken apart when asked for: frames of other producers, or not yet committed, may never be.
        if self._bodies is None:
            self._bodies = unpack_bodies(self._packed, self.count)
        return self._bodies


def pack_bodies(bodies: Sequence[bytes]) -> bytes:
    """The lengths of the bodies, then the bodies: a batch is packed in three calls, however many there are."""
    return struct.pack(f"<{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)


def unpack_bodies(packed: bytes, count: int) -> list[bytes]:
    """The inverse of `pack_bodies`."""
    lengths = struct.unpack_from(f"<{count}I", packed)
    return [packed[start:stop] for start, stop in pairwise(accumulate(lengths, initial=4 * count))]
