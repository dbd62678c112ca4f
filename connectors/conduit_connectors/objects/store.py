"""ObjectStore: what the connectors of objects need of a place that holds objects, and the local file system as one."""

import heapq
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from conduit_connectors.file.disk import make_folders, sync_path


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    name: str
    size: int
    modified: int
    """When it was stored here, in microseconds since 1970."""
    mark: str
    """What recognises this content of the object: another one has another mark."""


class ObjectReplaced(Exception):
    """The object has another content than that which was being read."""


class ObjectBytes(Protocol):
    """The bytes of one object, read by offset."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes, none only at the end. Raises ObjectReplaced if the content is another one."""
        ...

    def close(self) -> None: ...


class ObjectStore(Protocol):
    """A place that holds objects by name. Every method blocks, and may be called by several threads."""

    def show(self, name: str) -> str:
        """Return the address of an object, for people."""
        ...

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        """List all objects below a folder, whatever their depth, in an order that does not change.

        With `after`, only those that come behind this name in that order.
        """
        ...

    def is_before(self, name: str, other: str) -> bool:
        """Return True if a listing has `name` before `other`."""
        ...

    def find(self, name: str) -> ObjectInfo | None: ...

    def open(self, info: ObjectInfo) -> ObjectBytes:
        """Open an object. Raises FileNotFoundError or ObjectReplaced if it is not that one any more."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object. It need not be there."""
        ...

    def put(self, name: str, file: IO[bytes]) -> None:
        """Store the whole file under this name: readers see all of it or nothing."""
        ...

    def move(self, name: str, to: str) -> None:
        """Give an object another name, in one step or by a copy that is complete before the old one is removed.

        Raises FileNotFoundError if there is no object of that name.
        """
        ...

    def close(self) -> None:
        """End connections that are not shared with others."""
        ...


_LISTED_AT_ONCE = 20_000
"""How many names of one folder are in memory. A larger folder is listed several times."""


class LocalStore:
    """Files. A name is a path; listings are in the order of the bytes of the paths.

    A file counts as stored when its inode changed last: a file that is moved into the folder keeps its older time of
    modification, and would be missed.
    """

    def show(self, name: str) -> str:
        return name

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        start = os.fsencode(after) if after is not None else None
        for path in _walk(os.fsencode(folder), start):
            info = self.find(os.fsdecode(path))
            if info is not None:
                yield info

    def is_before(self, name: str, other: str) -> bool:
        return os.fsencode(name) < os.fsencode(other)

    def find(self, name: str) -> ObjectInfo | None:
        try:
            status = os.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _info(name, status) if stat.S_ISREG(status.st_mode) else None

    def open(self, info: ObjectInfo) -> "LocalBytes":
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        fd = os.open(info.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if _info(info.name, os.fstat(fd)).mark != info.mark:
            os.close(fd)
            raise ObjectReplaced
        return LocalBytes(fd)

    def remove(self, name: str) -> None:
        Path(name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            sync_path(Path(name).parent)

    def put(self, name: str, file: IO[bytes]) -> None:
        raise NotImplementedError("files are written where they are renamed, not copied")

    def move(self, name: str, to: str) -> None:
        make_folders(Path(to).parent)
        os.rename(name, to)
        sync_path(Path(to).parent)
        sync_path(Path(name).parent)

    def close(self) -> None:
        pass


class LocalBytes:
    """The bytes of an open file, which stay the same if its name is given to another one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        os.close(self._fd)


def _info(name: str, status: os.stat_result) -> ObjectInfo:
    mark = f"{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(name, status.st_size, status.st_ctime_ns // 1000, mark)


def _walk(folder: bytes, after: bytes | None) -> Iterator[bytes]:
    """Return the files below a folder in the order of their paths, with few names in memory at a time."""
    while True:
        # nsmallest holds only so many: a sorted list of a million names would not be small.
        entries = heapq.nsmallest(_LISTED_AT_ONCE, _entries_after(folder, after))
        for path in entries:
            if path.endswith(b"/"):
                # What is below a folder begins with its name, so `after` may be below it as well.
                yield from _walk(path[:-1], after)
            else:
                yield path
        if len(entries) < _LISTED_AT_ONCE:
            return
        # All below this folder, or all up to this file, was returned.
        after = entries[-1] + b"\xff" * 8 if entries[-1].endswith(b"/") else entries[-1]


def _entries_after(folder: bytes, after: bytes | None) -> Iterator[bytes]:
    """Return the paths in a folder, in any order; those of folders end in a slash, so that they sort as their files."""
    prefix = folder.rstrip(b"/") + b"/" if folder else b""
    try:
        entries = os.scandir(folder or b".")
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            # A link to a folder is not followed: it may lead back up, and the walk would not end.
            path = prefix + entry.name + (b"/" if entry.is_dir(follow_symlinks=False) else b"")
            if after is None or path > after or (path.endswith(b"/") and after.startswith(path)):
                yield path
