"""Rescue: after a disk error, replace a database file by a copy whose every page the disk has confirmed.

After a failed fsync it is unknown which pages of a file are on the disk: the system may have dropped some and
marked them clean, so that a later fsync succeeds and proves nothing. What the open connection shows is still
right, because it consists of confirmed commits. So its content is written to a new file, whose fsync covers every
page of it, and that file replaces the old one.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from conduit_py import crash_point

_COMPANIONS = ("-wal", "-shm", "-journal")


def copy_whole(connection: sqlite3.Connection, file: Path) -> None:
    """Copy what a connection shows of its file to `FILE.whole`, which exists only once all of it is durable."""
    if connection.in_transaction:
        raise sqlite3.OperationalError("a transaction could not be rolled back")
    draft = file.with_name(f"{file.name}.new")
    # An earlier attempt may have left half a copy.
    draft.unlink(missing_ok=True)
    create_private(draft)
    with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = MEMORY")
        # Without an fsync the copy would prove no more than the file that it replaces.
        copy.execute("PRAGMA synchronous = FULL")
        copy.execute("PRAGMA fullfsync = ON")
        connection.backup(copy)
    crash_point.reach("store.within_renewal")
    # Only now does it get the name by which it is adopted: a crash before leaves a draft that nobody reads.
    draft.rename(whole_of(file))
    sync_directory(file.parent)


def adopt_whole(file: Path) -> None:
    """Replace the file by its whole copy, if there is one. After a crash in between it can be called again."""
    whole = whole_of(file)
    if whole.exists():
        # The log of the old file first, durably: SQLite would apply it to the copy, which has newer pages.
        for suffix in _COMPANIONS:
            file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
        sync_directory(file.parent)
        crash_point.reach("store.within_adoption")
        whole.rename(file)
    # Also if the rename happened earlier: if a power cut undid it, the copy would be adopted once more, and what
    # was committed to it since would be lost with its log.
    sync_directory(file.parent)


def whole_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.whole")


def create_private(file: Path) -> None:
    """Create an empty file for this user alone. SQLite gives its companions the same rights."""
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
