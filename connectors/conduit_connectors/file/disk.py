"""Durable writes of files and folders, and what to do about an error of the disk."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only fsync.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_all(fd: int, pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """Write every piece in full, without joining them. Yields what each call wrote, so that the caller can undo it."""
    for piece in pieces:
        view = memoryview(piece)
        while view:
            count = os.write(fd, view)
            yield count
            view = view[count:]


def make_folders(folder: Path) -> None:
    """Create missing folders durably: they survive a power failure."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_path(each.parent)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def advice(error: OSError, path: Path) -> str:
    """Return advice for an error of the operating system about `path`."""
    if error.errno == errno.ENOSPC:
        usage = os.statvfs(path.parent)
        return f"free some space on the disk of {path.parent}: {usage.f_bavail * usage.f_frsize} bytes are left"
    if error.errno in FULL:
        return f"raise the quota or the file size limit of the user that writes {path}"
    if isinstance(error, PermissionError):
        return f"give the user that runs this write permission on {path} and its folder"
    return "check the path and the device it is on"
