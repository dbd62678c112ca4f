"""SyncMark: up to where a journal was synced. It makes a segment that was cut short differ from a torn append."""

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

NAME = "synced"
_MARK = struct.Struct("<16sQ")


class SyncMark:
    """The file `synced` of a journal, written after each sync and never synced itself.

    So it never says more than was on the disk. After a power cut it may say less.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._descriptor: int | None = None

    def write(self, journal: str, end: int) -> None:
        """Note that everything before `end` is on the disk. Call this with the lock of the journal held."""
        packed = _MARK.pack(journal.encode(), end)
        # An old mark only says less. The messages are on the disk, so their append must not fail for it.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, packed + zlib.crc32(packed).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def synced_end(directory: Path, journal: str) -> int:
    """The offset before which everything was synced; 0 if that is unknown, as for a journal without a mark."""
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return 0
    packed, checksum = data[: _MARK.size], data[_MARK.size :]
    if len(packed) < _MARK.size or zlib.crc32(packed).to_bytes(4, "little") != checksum:
        return 0
    id, end = _MARK.unpack(packed)
    # Of an earlier journal in this directory it says nothing.
    return int(end) if id == journal.encode() else 0
