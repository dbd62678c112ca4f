"""Disk: the few calls by which a journal changes what is on the disk, each between two kill points.

A test of faults gives a journal another one that fails where it is told to.
"""

import os
from pathlib import Path

from conduit_py import killpoint


class Disk:
    """What the system offers, as it is."""

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        """Write all of `data`; an error may leave a part of it."""
        killpoint.reach("journal.before_write")
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
        killpoint.reach("journal.after_write")

    def sync(self, descriptor: int) -> None:
        """Return when everything written to the file is on the disk."""
        killpoint.reach("journal.before_sync")
        os.fdatasync(descriptor)
        killpoint.reach("journal.after_sync")

    def truncate(self, descriptor: int, size: int) -> None:
        killpoint.reach("journal.before_truncate")
        os.ftruncate(descriptor, size)
        killpoint.reach("journal.after_truncate")

    def create(self, path: Path, content: bytes) -> None:
        """Put a whole file in place, or none: it and its name are on the disk on return."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.write(descriptor, content, 0)
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        killpoint.reach("journal.before_rename")
        os.rename(temporary, path)
        killpoint.reach("journal.after_rename")
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        killpoint.reach("journal.before_remove")
        path.unlink()
        killpoint.reach("journal.after_remove")

    def sync_directory(self, directory: Path) -> None:
        """Return when the names in the directory are on the disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        killpoint.reach("journal.after_directory_sync")
