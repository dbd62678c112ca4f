"""Rotation: finds a log that was moved or copied away, and the file that comes after it."""

import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

from conduit_connectors.file.handle import FilePosition, Handle
from conduit_py.sdk import FatalError

_logger = logging.getLogger(__name__)

# What log rotation puts behind a name: ".1", "-20261116", ".2026-11-16_05", but not ".bak" or ".conduit".
_ROTATED = re.compile(r"[.\-_]\d[\dTZ.:\-_]*")
_COMPRESSED = re.compile(_ROTATED.pattern + r"\.(gz|bz2|xz|zst|lz4)")


def find_rotated(path: Path, position: FilePosition) -> Handle | None:
    """Find the file of a position beside `path`: moved away, or copied away before `path` was truncated.

    A moved file has the same inode and may have any name; a copy has only its beginning in common, so it
    must have the name of a rotated `path`, and the latest such copy is taken.
    """
    beside = sorted(_files_beside(path), key=lambda file: file.modified, reverse=True)
    moved = [file for file in beside if file.inode == position.inode]
    copied = [file for file in beside if file.inode != position.inode and _ROTATED.fullmatch(file.suffix)]
    for file in moved + copied:
        handle = _open(file.path)
        if handle is not None and handle.holds(position):
            return handle
        if handle is not None:
            handle.close()
    return None


def find_next(path: Path, current: Handle) -> Handle | None:
    """Find the file to read after `current`, once it is no longer at `path`: the first rotated since then, else `path`.

    None while the file at `path` is the current one, missing or still empty: its writer may still write to the
    current one.
    """
    try:
        at_path = os.stat(path)
    except FileNotFoundError:
        return None
    if at_path.st_ino == current.inode or at_path.st_size == 0:
        return None
    modified = current.stat().st_mtime_ns
    newer = [file for file in _files_beside(path) if file.modified > modified and file.inode != current.inode]
    for file in sorted(newer, key=lambda file: file.modified):
        if _COMPRESSED.fullmatch(file.suffix):
            _logger.warning("%s is compressed, so what was not read before its rotation is missed", file.path)
        handle = _open(file.path) if _ROTATED.fullmatch(file.suffix) else None
        if handle is not None:
            return handle
    return Handle.open(path)


class _File(NamedTuple):
    path: Path
    suffix: str
    """Return what follows the name of the log in a file's name; empty for a name of another kind."""
    inode: int
    modified: int


def _files_beside(path: Path) -> list[_File]:
    files: list[_File] = []
    if not path.parent.is_dir():
        return files
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name == path.name or not entry.is_file(follow_symlinks=False):
                continue
            try:
                status = os.stat(entry.path)
            except FileNotFoundError:
                continue
            suffix = entry.name.removeprefix(path.name) if entry.name.startswith(path.name) else ""
            files.append(_File(Path(entry.path), suffix, status.st_ino, status.st_mtime_ns))
    return files


def _open(path: Path) -> Handle | None:
    try:
        return Handle.open(path)
    except FatalError as error:
        _logger.warning("a rotated file is passed over: %s", error.message)
        return None
