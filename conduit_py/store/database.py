"""Database: the file `state.db` in a state directory: its format, how it comes to be, when it is refused."""

import ctypes
import os
import sqlite3
import weakref
from contextlib import closing
from pathlib import Path

from conduit_py.errors import EnvironmentUnfit
from conduit_py.store.lock import StateLock, unusable

APPLICATION_ID = 0x436E6470
"""What makes a SQLite file one of ours: "Cndp"."""
FORMAT_VERSION = 1

_SCHEMA = """
CREATE TABLE entries (
    pipeline TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (pipeline, kind, node)
) WITHOUT ROWID
"""


class Database:
    """An open state database and the lock of its directory, to be used from one thread at a time.

    The connection commits every statement by itself unless told otherwise, and a commit returns after
    the disk has confirmed it.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection, lock: StateLock) -> None:
        self.file = file
        self.connection = connection
        self._lock = lock
        _opened.add(self)

    @classmethod
    def open(cls, directory: Path) -> "Database":
        """Open the database of a directory, creating both if missing.

        Raises StateLocked when another process has it, and EnvironmentUnfit, with nothing changed, when
        the directory cannot be written or the file is not a sound database of a version known here.
        """
        try:
            _create_directory(directory)
        except OSError as error:
            raise unusable(directory, error) from error
        lock = StateLock.acquire(directory)
        file = directory / "state.db"
        try:
            return cls(file, _open(file), lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        # The lock goes last: whoever gets it must find the file released.
        try:
            self.connection.close()
        finally:
            self._lock.release()


_opened: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _keep_from_closing() -> None:
    # SQLite does not know that it was forked. A child that closed its copy, if only by ending, would
    # remove the write-ahead log under its parent, and with it what the parent commits from then on. So
    # in the child a connection is given a reference that nothing takes back.
    for database in list(_opened):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database.connection))


os.register_at_fork(after_in_child=_keep_from_closing)


def _open(file: Path) -> sqlite3.Connection:
    try:
        if not file.exists():
            _create(file)
        # SQLite would open a file that may only be read, and fail later and less clearly.
        file.open("r+b").close()
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=1)
        try:
            _prepare(file, connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _refused(file, error) from error
    return connection


def _prepare(file: Path, connection: sqlite3.Connection) -> None:
    # Nobody else may open the file: a reader that stays would keep the write-ahead log from being reused.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # Before anything that writes: a file of someone else's must stay as it is.
    _check_format(file, connection)
    problem = _one(connection, "PRAGMA quick_check(1)")
    if problem != "ok":
        raise _damaged(file, str(problem))
    if _one(connection, "PRAGMA journal_mode = WAL") != "wal":
        raise EnvironmentUnfit(
            f"{file}: the file system does not support SQLite's write-ahead log",
            suggestion="choose a directory on a local disk with --state",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")


def _check_format(file: Path, connection: sqlite3.Connection) -> None:
    if _one(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise EnvironmentUnfit(
            f"{file} was not written by conduit-py",
            suggestion="move it away, or choose another directory with --state",
        )
    version = _one(connection, "PRAGMA user_version")
    if version != FORMAT_VERSION:
        raise EnvironmentUnfit(
            f"{file} has format version {version}; this conduit-py knows version {FORMAT_VERSION}",
            suggestion="use the version of conduit-py that wrote it, or choose another directory with --state",
        )


def _create(file: Path) -> None:
    """Make the file under another name first, so that a `state.db` is complete from its first moment on.

    An empty `state.db` is therefore damage, not a beginning, and is refused like any other.
    """
    log = file.with_name(f"{file.name}-wal")
    if log.exists():
        raise EnvironmentUnfit(
            f"{file} is missing, but {log.name}, which belongs to it, is there",
            suggestion=f"put {file.name} back, or remove {log.name} too: every source then starts from the beginning",
        )
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("BEGIN")
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    draft.rename(file)
    _sync(file.parent)


def _create_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    # A directory whose name is not on disk would take the state with it in a power cut.
    for path in missing:
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _one(connection: sqlite3.Connection, sql: str) -> object:
    return connection.execute(sql).fetchone()[0]


def _damaged(file: Path, problem: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"{file} is damaged: {problem}",
        suggestion="put back a copy, or choose another directory with --state: every source then starts from "
        "the beginning",
    )


def _refused(file: Path, error: sqlite3.Error | OSError) -> EnvironmentUnfit:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(file, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return EnvironmentUnfit(
            f"{file} is open in another program",
            suggestion="close that program, or choose another directory with --state",
        )
    return EnvironmentUnfit(
        f"{file} cannot be used: {error.strerror if isinstance(error, OSError) else error}",
        suggestion="check that this user may write it and that the disk has space, or choose another "
        "directory with --state",
    )
