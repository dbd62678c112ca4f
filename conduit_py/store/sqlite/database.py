"""StateDatabase: the file `state.db` in a state directory: its tables, how it is created, when it is refused.

A released version of the tables is never changed: every change is a new version.
"""

import ctypes
import os
import sqlite3
import stat
import weakref
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from conduit_py import crash_point
from conduit_py.errors import EnvironmentUnfit, StateFailed, describe
from conduit_py.store.sqlite.files import (
    StateLock,
    adopt_whole,
    copy_whole,
    create_private,
    sync_directory,
    unusable,
    whole_of,
)

_ENTRIES = """
CREATE TABLE entries (
    pipeline TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (pipeline, kind, node)
) WITHOUT ROWID
"""

_TRANSACTIONS = (
    "CREATE TABLE claims (owner TEXT PRIMARY KEY, fence INTEGER NOT NULL CHECK (fence > 0),"
    " committed INTEGER NOT NULL, checkpoint BLOB) WITHOUT ROWID",
    "CREATE TABLE owned (owner TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (owner, key))"
    " WITHOUT ROWID",
    # Keys come in no order, so the index is written all over; the rows lie in the order of their times, and
    # what is old is found at one end.
    "CREATE TABLE seen (number INTEGER PRIMARY KEY, scope TEXT NOT NULL, key BLOB NOT NULL, at REAL NOT NULL)",
    "CREATE UNIQUE INDEX seen_once ON seen (scope, key)",
    # AUTOINCREMENT: a number must not come again when the newest row was forwarded and removed.
    "CREATE TABLE intents (number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, target TEXT NOT NULL,"
    " key BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX intents_in_order ON intents (target, number)",
    "CREATE TABLE leases (target TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE shards (scope TEXT NOT NULL, shard TEXT NOT NULL, token TEXT NOT NULL, position BLOB NOT NULL,"
    " done INTEGER NOT NULL, updated REAL NOT NULL, PRIMARY KEY (scope, shard)) WITHOUT ROWID",
)

SCHEMA = _ENTRIES
"""What version 1 is created with."""
LATER: tuple[tuple[str, ...], ...] = (_TRANSACTIONS,)
"""What each later version adds to the one before it."""
FORMAT_VERSION = 1 + len(LATER)

APPLICATION_ID = 0x436E6470
"""What makes a SQLite file one of ours: "Cndp"."""


class FileFormat(NamedTuple):
    """How a file of ours is recognised, created and migrated."""

    schema: str
    """What version 1 is created with: statements with a semicolon and a line break between them."""
    application_id: int
    version: int
    loss: str
    """What is lost without the file."""
    later: tuple[tuple[str, ...], ...] = ()
    """What each version after the first adds to the one before it."""


STATE = FileFormat(SCHEMA, APPLICATION_ID, FORMAT_VERSION, "every source then starts from the beginning", LATER)


class StateDatabase:
    """An open state database and the lock of its directory, to be used from one thread at a time.

    The connection commits every statement by itself by default, and a commit returns after
    the disk has confirmed it.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection, lock: StateLock) -> None:
        self.file = file
        self.connection = connection
        self._lock = lock
        survive_forks(self)

    @classmethod
    def open(cls, directory: Path) -> "StateDatabase":
        """Open the database of a directory, creating both if missing.

        Raises StateLocked when another process has it. Raises EnvironmentUnfit, with nothing changed, when the
        directory cannot be written or the file is not a sound database of a known version.
        """
        try:
            _create_directory(directory)
        except OSError as error:
            raise unusable(directory, error) from error
        lock = StateLock.acquire(directory)
        file = directory / "state.db"
        try:
            return cls(file, open_file(file, STATE), lock)
        except BaseException:
            lock.release()
            raise

    def rescue(self) -> None:
        """Replace the file by a copy after a disk error; see `files.py`. If that fails it may be called again."""
        self.connection = reopen_from_copy(self.connection, self.file, STATE)

    def close(self) -> None:
        # The lock is released last: its next owner must find the file closed.
        try:
            self.connection.close()
        finally:
            self._lock.release()


class _Opened(Protocol):
    connection: sqlite3.Connection


_opened: "weakref.WeakSet[_Opened]" = weakref.WeakSet()


def survive_forks(opened: _Opened) -> None:
    """Keep a forked child process from closing the connection that this object owns."""
    _opened.add(opened)


def _keep_from_closing() -> None:
    # SQLite does not notice a fork. A child that closed its copy, if only by ending, would remove the
    # write-ahead log of its parent, and all that the parent commits later. So in the child a connection is given a
    # reference that nothing takes back.
    for database in list(_opened):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database.connection))


os.register_at_fork(after_in_child=_keep_from_closing)


def open_file(file: Path, format: FileFormat) -> sqlite3.Connection:
    """Open a file in a directory that is locked, creating it if missing; raises EnvironmentUnfit as `open` does."""
    try:
        # First: after a crash in a rescue the whole copy is not in place yet, and the file may be damaged.
        adopt_whole(file)
        if not file.exists():
            _create(file, format)
        # SQLite would open a file that may only be read, and fail later and less clearly.
        file.open("r+b").close()
        # Used by one thread at a time, but not always by the same one.
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=1)
        try:
            _prepare(file, connection, format)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _open_error(file, format, error) from error
    return connection


def reopen_from_copy(connection: sqlite3.Connection, file: Path, format: FileFormat) -> sqlite3.Connection:
    """Replace a file by a copy and connect to it. The old connection is closed, unless the copy cannot be made.

    Raises EnvironmentUnfit when the disk does not take the copy.
    """
    try:
        # An earlier attempt may have made the copy already: nothing was written since.
        if not (_closed(connection) or whole_of(file).exists()):
            copy_whole(connection, file)
    except (sqlite3.Error, OSError) as error:
        raise _open_error(file, format, error) from error
    with suppress(sqlite3.Error):
        connection.close()
    return open_file(file, format)


def _closed(connection: sqlite3.Connection) -> bool:
    try:
        # A connection has no property for it, but every call on a closed one raises.
        return connection.total_changes < 0
    except sqlite3.ProgrammingError:
        return True


def _prepare(file: Path, connection: sqlite3.Connection, format: FileFormat) -> None:
    # Without this, a reader in another program that stays would keep the write-ahead log from being reused.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # Before anything that writes: a file of another program must not be changed.
    version = _checked_version(file, connection, format)
    _close_to_others(file)
    # Invariant 11: torn state is found before anything reads it.
    problem = _one(connection, "PRAGMA quick_check(1)")
    if problem != "ok":
        raise _damage_error(file, format, str(problem))
    if _one(connection, "PRAGMA journal_mode = WAL") != "wal":
        raise EnvironmentUnfit(
            f"{file}: the file system does not support SQLite's write-ahead log",
            suggestion="choose a directory on a local disk with --state",
        )
    # Invariant 11: NORMAL would lose commits in a power cut, because it syncs only at checkpoints of the log.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    # Keys come in no order and touch a page each, so the log is checkpointed less often than by default.
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA cache_size = -32768")
    if version < format.version:
        _bring_up_to_date(connection, format, version)


def _bring_up_to_date(connection: sqlite3.Connection, format: FileFormat, version: int) -> None:
    # One transaction: a crash half-way leaves the old version, never a mixture.
    crash_point.reach("store.before_migration")
    connection.execute("BEGIN IMMEDIATE")
    _add(connection, format, version)
    crash_point.reach("store.within_migration")
    connection.execute("COMMIT")
    crash_point.reach("store.after_migration")


def _add(connection: sqlite3.Connection, format: FileFormat, version: int) -> None:
    """Add what a file of this version lacks. The caller has begun a transaction."""
    for statements in format.later[version - 1 :]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {format.version}")


def _checked_version(file: Path, connection: sqlite3.Connection, format: FileFormat) -> int:
    if _one(connection, "PRAGMA application_id") != format.application_id:
        raise EnvironmentUnfit(
            f"{file} was not written by conduit-py",
            suggestion="move it away, or choose another directory with --state",
        )
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 1 <= version <= format.version:
        known = "version 1" if format.version == 1 else f"versions 1 to {format.version}"
        raise EnvironmentUnfit(
            f"{file} has format version {version}; this conduit-py can read {known}",
            suggestion="use the version of conduit-py that wrote it, or choose another directory with --state",
        )
    return version


def _create(file: Path, format: FileFormat) -> None:
    """Create the file under another name first, so that a `state.db` is always complete.

    An empty `state.db` is therefore damage, and is refused.
    """
    log = file.with_name(f"{file.name}-wal")
    if log.exists():
        raise EnvironmentUnfit(
            f"{file} is missing, but {log.name}, which belongs to it, is there",
            suggestion=f"put {file.name} back, or remove {log.name} too: {format.loss}",
        )
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    create_private(draft)
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("BEGIN")
        for statement in format.schema.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {format.application_id}")
        _add(connection, format, version=1)
        connection.execute("COMMIT")
    draft.rename(file)
    # Commits sync the file but not its name: without this a power cut could take both.
    sync_directory(file.parent)


def _close_to_others(file: Path) -> None:
    """Take the file of an earlier version from other users: it had the rights that the umask left."""
    status = file.stat()
    if status.st_mode & stat.S_IRWXO and status.st_uid == os.geteuid():
        file.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IRWXO)


def _create_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    # Dead letters are whole records, so other users of the machine must not read them.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & stat.S_IWOTH:
        raise EnvironmentUnfit(
            f"state directory {directory} can be written to by anybody, who could change positions or add files to it",
            suggestion=f"chmod o-w {directory}, or choose another directory with --state",
        )
    # In a power cut, a directory whose name is not on the disk is lost with all that is in it.
    for path in missing:
        sync_directory(path.parent)


def _one(connection: sqlite3.Connection, sql: str) -> object:
    return connection.execute(sql).fetchone()[0]


UNREADABLE = (ValueError, TypeError, LookupError)
"""What decoding raises for bytes that are not what was written."""


def use_error(file: Path, format: FileFormat, doing: str, error: Exception, suggestion: str) -> StateFailed:
    """The error of an open file: damage is named as such, everything else by what could not be done."""
    # A text that cannot be encoded is the caller's: nothing was read.
    unreadable = isinstance(error, UNREADABLE) and not isinstance(error, UnicodeEncodeError)
    damaged = unreadable or _code(error) in _DAMAGE
    failure = StateFailed(
        f"{file} is damaged: {describe(error)}" if damaged else f"{file} could not be {doing}: {describe(error)}",
        suggestion=_mend_hint(format) if damaged else suggestion,
    )
    failure.__cause__ = error
    return failure


def _mend_hint(format: FileFormat) -> str:
    return f"put back a copy, or choose another directory with --state: {format.loss}"


def _damage_error(file: Path, format: FileFormat, problem: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(f"{file} is damaged: {problem}", suggestion=_mend_hint(format))


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _open_error(file: Path, format: FileFormat, error: sqlite3.Error | OSError) -> EnvironmentUnfit:
    code = _code(error)
    if code in _DAMAGE:
        return _damage_error(file, format, str(error))
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
