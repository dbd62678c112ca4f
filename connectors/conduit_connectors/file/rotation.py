"""Rotation: finds a log that was moved or copied away, and the file that comes after it."""

import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

from conduit_connectors.file.handle import FilePosition, FileStart, Handle
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


def locate_line(path: Path, position: FilePosition) -> str | None:
    """Return the file and the line that ends at this position, at `path` or rotated since; None if it is gone."""
    handle = Handle.open(path)
    if handle is not None and not (handle.inode == position.inode and handle.holds(position)):
        handle.close()
        handle = None
    handle = handle or find_rotated(path, position)
    if handle is None:
        return None
    try:
        line = handle.line_at(position.offset)
    finally:
        handle.close()
    return f"{handle.path}, before byte {position.offset}" if line is None else f"{handle.path} line {line}"


def newest_rotated(path: Path) -> int:
    """Return the last change of the newest rotated file, in nanoseconds; 0 if there is none."""
    return max((file.modified for file in _rotated_beside(path)), default=0)


def find_first(path: Path, start: FileStart) -> Handle | None:
    """Return the file that a source started with, at `path` or rotated since; None if there is no file yet."""
    at_path = Handle.open(path)
    same = at_path is not None and at_path.inode == start.inode and start.begins(at_path)
    # The first bytes prove that it is the same file. An empty beginning proves nothing: look for a copy first.
    if same and start.size:
        return at_path
    rotated = _find_rotated_since(path, start)
    if rotated is None:
        if start.inode and not same:
            warn_missed(path, 0, "before its first lines were delivered")
        return at_path
    if at_path is not None:
        at_path.close()
    return rotated


def warn_missed(path: Path, offset: int, when: str) -> None:
    _logger.warning(
        "%s was rotated or truncated %s, and its old content is not beside it: "
        "lines after byte %d of it may have been missed; going on with the file as it is now",
        path,
        when,
        offset,
    )


def _find_rotated_since(path: Path, start: FileStart) -> Handle | None:
    """Return the file of the start, moved, or the oldest file rotated since then that begins like it."""
    moved = [file for file in _files_beside(path) if file.inode == start.inode]
    since = [file for file in _rotated_beside(path) if file.modified > start.since and file.inode != start.inode]
    for file in moved + sorted(since, key=lambda file: file.modified):
        handle = _open(file.path)
        if handle is not None and start.begins(handle):
            return handle
        if handle is not None:
            handle.close()
    return None


def _rotated_beside(path: Path) -> "list[_File]":
    return [file for file in _files_beside(path) if _ROTATED.fullmatch(file.suffix)]


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
