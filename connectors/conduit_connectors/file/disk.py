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


def sync_below(root: Path, paths: Iterable[Path]) -> None:
    """Make files below a folder durable, and the names of all folders between it and them, which may be new."""
    folders: set[Path] = set()
    for path in paths:
        sync_path(path)
        folders.update([each for each in path.parents if each.is_relative_to(root)] or [path.parent])
    for folder in sorted(folders, reverse=True):
        sync_path(folder)


def sync_above(path: Path) -> None:
    """Make the name of a folder durable, and of all above it: how many of them are new is not known."""
    for folder in path.parents:
        try:
            sync_path(folder)
        except PermissionError:
            # What this user cannot read, it did not make.
            return


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
