"""Renewal: going on with a database file after an error of the disk, in a copy of which every page is confirmed.

After an fsync that failed nobody knows which pages of a file are on the disk: the system may have dropped
some and calls them clean, so that a later fsync succeeds and proves nothing. What the open connection shows
is still right, for it is made of commits that were confirmed. So its content is written to a file of its own,
whose fsync says something about every page of it, and that file takes the place of the old one.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from conduit_py import crash_point

_COMPANIONS = ("-wal", "-shm", "-journal")


def copy_whole(connection: sqlite3.Connection, file: Path) -> None:
    """Copy what a connection shows of its file to `FILE.whole`, which is there only once all of it is durable."""
    if connection.in_transaction:
        raise sqlite3.OperationalError("a transaction could not be rolled back")
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = MEMORY")
        copy.execute("PRAGMA synchronous = FULL")
        copy.execute("PRAGMA fullfsync = ON")
        connection.backup(copy)
    crash_point.reach("store.within_renewal")
    draft.rename(whole_of(file))
    sync_directory(file.parent)


def adopt_whole(file: Path) -> None:
    """Put a whole copy, if there is one, in the place of the file; again after a crash on the way.

    The log of the old file goes first: it must never meet the copy, which holds newer pages than it.
    """
    whole = whole_of(file)
    if whole.exists():
        for suffix in _COMPANIONS:
            file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
        sync_directory(file.parent)
        crash_point.reach("store.within_adoption")
        whole.rename(file)
    # Also when it was renamed before: were that undone by a power cut, the copy would be adopted once more,
    # and what was committed to it since would be lost with its log.
    sync_directory(file.parent)


def whole_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.whole")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
