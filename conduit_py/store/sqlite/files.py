"""The files of a state directory: StateLock, by which one process owns it; its backup; rescue after a disk error.

After a failed fsync it is unknown which pages of a file are on the disk: the system may have dropped some and
marked them clean, so that a later fsync succeeds and proves nothing. What the open connection shows is still
right, because it consists of confirmed commits. So its content is written to a new file, whose fsync covers every
page of it, and that file replaces the old one.
"""

import errno
import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from conduit_py import crash_point
from conduit_py.errors import EnvironmentUnfit, StateLocked

UNFINISHED_RESTORE = "restore.unfinished"
"""A folder that exists from the beginning of a restore to its end."""


class StateLock:
    """Held from `acquire` until `release` or the end of the process, even by `kill -9`.

    The lock belongs to the open file, not to the process: a second `acquire` is refused in the same
    process too. Child processes do not keep it alive, whether they exec or not.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def acquire(cls, directory: Path) -> "StateLock":
        """Lock an existing directory, or raise StateLocked naming the process that has it.

        Raises EnvironmentUnfit if a restore was begun here and not finished.
        """
        lock = cls.acquire_to_restore(directory)
        if (directory / UNFINISHED_RESTORE).exists():
            lock.release()
            # Without its files a pipeline would start from the beginning, with some of them lose dead letters.
            raise EnvironmentUnfit(
                f"state directory {directory} holds half of a restored state",
                suggestion="repeat `conduit-py state restore`: it begins again",
            )
        return lock

    @classmethod
    def acquire_to_restore(cls, directory: Path) -> "StateLock":
        """Lock an existing directory as `acquire` does, also after half a restore."""
        try:
            descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(directory, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_owner(descriptor)
        except OSError as error:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            if error.errno == errno.EWOULDBLOCK:
                raise _locked_error(directory, owner) from None
            raise unusable(directory, error) from error
        return cls(descriptor)

    def release(self) -> None:
        """Release the directory for another process. A second call has no effect."""
        if self._descriptor is not None:
            # The file stays: without it, two processes could lock two files of the same name.
            os.close(self._descriptor)
            self._descriptor = None


def unusable(directory: Path, error: OSError) -> EnvironmentUnfit:
    """The error for a state directory that cannot be created or written."""
    not_a_directory = isinstance(error, FileExistsError | NotADirectoryError)
    reason = "it is, or lies below, a file that is not a directory" if not_a_directory else error.strerror
    return EnvironmentUnfit(
        f"state directory {directory} cannot be used: {reason}",
        suggestion="choose a directory that this user may write to with --state",
    )


def _locked_error(directory: Path, owner: int | None) -> StateLocked:
    if owner == os.getpid():
        who = f"this process already (pid {owner})"
    else:
        who = f"process {owner}" if owner else "another process"
    return StateLocked(
        f"state directory {directory} is in use by {who}",
        suggestion="stop that process, or choose another directory with --state",
    )


def _write_owner(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _read_owner(descriptor: int) -> int | None:
    # The file is empty for a moment after another process has locked it.
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


_held: "weakref.WeakSet[StateLock]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    # Close-on-exec covers children that exec; one that only forks shares the open file and would hold
    # the lock after its parent's death. Closing its copy leaves the parent's lock as it is.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)


CLOSE_WAIT_SECONDS = 5.0
"""How long a store that closes waits for a backup, so that the backup need not begin again."""


@contextmanager
def appending_only_under_backup(connection: sqlite3.Connection, directory: Path) -> Iterator[None]:
    """Commit within the block. While a backup copies the files, that only appends to the log."""
    descriptor, permitted = _lock_checkpoints(directory, fcntl.LOCK_SH, 0.0)
    try:
        if permitted:
            yield
            return
        [(pages,)] = connection.execute("PRAGMA wal_autocheckpoint").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        try:
            yield
        finally:
            connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def after_backup(directory: Path) -> Iterator[None]:
    """Close a database within the block, which checkpoints: after a backup, unless that takes long."""
    descriptor, _ = _lock_checkpoints(directory, fcntl.LOCK_SH, CLOSE_WAIT_SECONDS)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def hold_checkpoints(directory: Path, wait_seconds: float = 30.0) -> Iterator[None]:
    """Keep the process that uses a state directory from checkpoints. It commits as before.

    The lock is on the directory itself and ends with the process. If another backup has it for too long, this one
    goes on without: it notices when the files change.
    """
    descriptor, _ = _lock_checkpoints(directory, fcntl.LOCK_EX, wait_seconds)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock_checkpoints(directory: Path, kind: int, wait_seconds: float) -> tuple[int | None, bool]:
    """Return a descriptor to close afterwards, and whether the lock was had: a checkpoint spoils a backup."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        if kind == fcntl.LOCK_EX:
            raise
        # Without descriptors left commits must go on. A backup notices a checkpoint, and copies again.
        return None, True
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return descriptor, True
        except OSError as error:
            # A file system without such locks has no backup that could hold one.
            if error.errno != errno.EWOULDBLOCK:
                return descriptor, True
            if time.monotonic() >= deadline:
                return descriptor, False
        time.sleep(0.005)


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
    # Also if the rename happened earlier: if a power cut undid it, the copy would be adopted once more. What was
    # committed to it since would be lost with its log.
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
