"""SqliteDeadLetterStore: dead letters in the file `letters.db` of a state directory."""

import itertools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from conduit_py.crash_point import reach
from conduit_py.errors import EnvironmentUnfit, StateFailed, describe
from conduit_py.owned_thread import OwnedThread
from conduit_py.store.dead_letter_store import DeadLetterStore, SqlLetters
from conduit_py.store.sqlite.database import (
    APPLICATION_ID,
    UNREADABLE,
    FileFormat,
    open_file,
    reopen_from_copy,
    survive_forks,
    use_error,
)
from conduit_py.store.sqlite.files import after_backup, appending_only_under_backup
from conduit_py.store.sqlite.tables import SqliteSession

T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""How long a store may take to close. Everything committed is durable before."""


FORMAT = FileFormat(
    """
CREATE TABLE letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    pipeline TEXT NOT NULL,
    source TEXT NOT NULL,
    nodes TEXT NOT NULL,
    node TEXT NOT NULL,
    error TEXT NOT NULL,
    cause TEXT NOT NULL,
    state TEXT NOT NULL,
    queued_for TEXT NOT NULL,
    turn INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    edited INTEGER NOT NULL,
    first_at REAL NOT NULL,
    last_at REAL NOT NULL,
    bytes INTEGER NOT NULL,
    letter BLOB NOT NULL
);
CREATE INDEX letters_by_pipeline ON letters (pipeline, state, turn, bytes);
CREATE INDEX letters_by_cause ON letters (pipeline, node, cause, last_at)
""",
    APPLICATION_ID,
    1,
    "the dead letters are lost then",
)


class SqliteDeadLetterStore(DeadLetterStore):
    """Durable on the local disk, in a file that is created with the first letter.

    The directory must be locked by the caller. After a failed commit, unless the disk was full, every change raises
    StateFailed until the file was rescued: no later commit could be believed.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._file = _LettersFile(directory / "letters.db")
        self._thread: OwnedThread | None = None

    async def close(self) -> None:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._thread is not None:
                await self._thread.run(self._file.close, final=True)
                self._thread.close()
                self._thread = None
            else:
                # Never used: a thread only for this would be one more thing that can fail at the end of a process.
                self._file.close()

    async def _look(self, work: Callable[[SqlLetters], T]) -> T:
        return await self._in_thread(self._file.look, work)

    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        return await self._in_thread(self._file.change, work)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        # A disk that never answers must not keep a run from ending: a cancelled caller leaves at once.
        if self._thread is None:
            self._thread = OwnedThread("letters")
        return await self._thread.run(call, *args)


class _LettersFile:
    """The file, used by one thread at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # A cancelled caller leaves its call running: two threads on one connection would share a transaction.
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._broken: BaseException | None = None
        self._closed = False

    def look(self, work: Callable[[SqlLetters], T]) -> T:
        with self._lock:
            opened = self._open(create=False)
            try:
                # A read creates no file: most pipelines never have a letter.
                return work(opened.letters if opened is not None else letters_in_memory()[1])
            except (sqlite3.Error, *UNREADABLE) as error:
                raise use_error(self._file, FORMAT, "read", error, CHECK_DISK) from error

    def change(self, work: Callable[[SqlLetters], T]) -> T:
        with self._lock:
            if self._broken is not None:
                self._rescue(self._broken)
            opened = self._open(create=True)
            assert opened is not None
            return self._transact(opened, work)

    def _rescue(self, broken: BaseException) -> None:
        """Replace the file after a disk error; see `files.py`."""
        assert self._opened is not None
        try:
            self._opened = self._connect(reopen_from_copy(self._opened.connection, self._file, FORMAT))
        except EnvironmentUnfit as error:
            raise StateFailed(
                f"{self._file} takes no more changes, because an earlier one failed: {describe(broken)}",
                suggestion=CHECK_DISK,
            ) from error
        self._broken = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._opened is not None:
                # The last connection to close checkpoints.
                with after_backup(self._file.parent):
                    self._opened.connection.close()
                self._opened = None

    def _open(self, *, create: bool) -> "_Opened | None":
        if self._closed:
            raise StateFailed(f"{self._file} is closed")
        if self._opened is None and (create or self._file.exists()):
            self._opened = self._connect(open_file(self._file, FORMAT))
        return self._opened

    def _connect(self, connection: sqlite3.Connection) -> "_Opened":
        try:
            return _Opened(connection)
        except sqlite3.Error as error:
            connection.close()
            raise use_error(self._file, FORMAT, "read", error, CHECK_DISK) from error

    def _transact(self, opened: "_Opened", work: Callable[[SqlLetters], T]) -> T:
        connection = opened.connection
        try:
            with appending_only_under_backup(connection, self._file.parent):
                connection.execute("BEGIN IMMEDIATE")
                result = work(opened.letters)
                reach("letters.before_commit")
                connection.execute("COMMIT")
                reach("letters.after_commit")
            return result
        except BaseException as error:
            self._roll_back(connection, error)
            if isinstance(error, (sqlite3.Error, *UNREADABLE)):
                full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
                advice = "free space on that disk" if full else CHECK_DISK
                raise use_error(self._file, FORMAT, "written", error, advice) from error
            raise

    def _roll_back(self, connection: sqlite3.Connection, error: BaseException) -> None:
        # After any other error of SQLite it is unknown which pages are on the disk.
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in NOTHING_WRITTEN:
            self._broken = error
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error as failed:
            self._broken = failed


CHECK_DISK = "check the disk; once it takes writes again, so does conduit-py"
NOTHING_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG)
"""Errors after which the file is as it was, so that it need not be opened again."""


class _Opened:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.letters = letters_on(connection)
        survive_forks(self)


def letters_on(connection: sqlite3.Connection) -> SqlLetters:
    """The letters on a connection that is used for all changes: turns are counted here."""
    session = SqliteSession(connection)
    # Turns of deleted letters may come again here: a replay begins at the first turn after a restart.
    last = session.value("SELECT coalesce(max(turn), 0) FROM letters")
    return SqlLetters(session, itertools.count(last + 1).__next__)


def letters_in_memory() -> tuple[sqlite3.Connection, SqlLetters]:
    """No letters, in a database of their own that lasts as long as the connection."""
    # It may be used in several threads, one after the other.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(FORMAT.schema)
    return connection, letters_on(connection)
