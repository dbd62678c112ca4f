"""Position: where in which file a record ends, and how to recognise that file again."""

import hashlib
import re
from typing import NamedTuple

from conduit_connectors.numbering import foreign_position

HEAD_SIZE = 1024
"""How much of the beginning of a file is used to recognise it."""

_PATTERN = re.compile(rb"file:1:(\d+):([0-9a-f]{16}):(\d+)")


class Position(NamedTuple):
    """The offset just past a record, in the file with this inode and this beginning.

    `head` is a hash of the first bytes of the file, at most HEAD_SIZE and none beyond `offset`. So it is
    the same whenever the record is read, however long the file was then, and so is the delivery key
    made of it. The device is left out: its number may change with every boot.
    """

    inode: int
    head: str
    offset: int

    @classmethod
    def parse(cls, raw: bytes) -> "Position":
        match = _PATTERN.fullmatch(raw)
        if match is None:
            raise foreign_position("file", raw)
        return cls(int(match[1]), match[2].decode(), int(match[3]))

    def __bytes__(self) -> bytes:
        return prefix(self.inode, self.head) + b"%d" % self.offset


def prefix(inode: int, head: str) -> bytes:
    """What all positions with the same head in one file begin with; the offset in decimal follows."""
    return b"file:1:%d:%s:" % (inode, head.encode())


def hash_head(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()
