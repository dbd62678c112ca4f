"""SqliteStore: the default store, one SQLite file in a directory that one process owns, and its group commit."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import outcome
import trio

from conduit_py import crash_point
from conduit_py.errors import EnvironmentUnfit, StateFailed, describe
from conduit_py.owned_thread import GroupThread, Request
from conduit_py.store.sqlite.database import STATE, StateDatabase, use_error
from conduit_py.store.sqlite.files import after_backup, appending_only_under_backup
from conduit_py.store.sqlite.letters import CHECK_DISK, CLOSE_SECONDS, NOTHING_WRITTEN, SqliteDeadLetterStore
from conduit_py.store.sqlite.tables import SqliteSession, SqliteTables
from conduit_py.store.store import Kind, Store, StoredEntry

T = TypeVar("T")
Statement: TypeAlias = tuple[str, Sequence[object]]
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

log = logging.getLogger("conduit_py")

RESCUE_SECONDS = 5.0
"""Between two attempts to rescue the database after a disk error."""
_ROWS_MAX = 240
"""Rows in one statement: SQLite before 3.32 takes 999 variables, a row has four."""


class SqliteStore(Store):
    """Durable on the local disk. Concurrent writes share commits, so a hundred cost little more than one.

    After a failed commit every write raises StateFailed until the database was rescued, which later writes attempt;
    after a full disk the next write is attempted as it is. Reads go on and show what was durable before.
    """

    def __init__(self, database: StateDatabase, clock: Callable[[], float] = time.time) -> None:
        self._committer = GroupCommitter(database)
        self._clock = clock
        self.place = str(database.file)
        self.letters = SqliteDeadLetterStore(database.file.parent)

    @classmethod
    async def open(cls, directory: Path) -> "SqliteStore":
        """Open the store of a state directory, creating it if missing.

        Raises StateLocked when another process has it, and EnvironmentUnfit, with nothing changed, when
        it cannot be used: not a directory, not writable, damaged, foreign, or written by a newer version.
        """
        # Not abandoned on cancellation: the lock would be left behind with nobody to release it.
        return cls(await trio.to_thread.run_sync(StateDatabase.open, directory))

    @property
    def commits(self) -> int:
        """How many transactions became durable since the store was opened."""
        return self._committer.commits

    async def transact(self, work: Callable[[SqliteTables], T]) -> T:
        result: T = await self._committer.ask(_Work(lambda connection: work(self._tables(connection))))
        return result

    async def look(self, work: Callable[[SqliteTables], T]) -> T:
        result: T = await self._committer.ask(_Look(lambda connection: work(self._tables(connection))))
        return result

    async def pipelines(self) -> list[str]:
        return await self.look(SqliteTables.pipelines)

    async def close(self) -> None:
        await self.letters.close()
        # Last, because it holds the lock of the directory.
        await self._committer.close()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        return await self.look(lambda tables: tables.entries(pipeline, kind))

    async def _save(self, rows: list[StoredEntry]) -> None:
        await self._committer.ask(_Save(rows))

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self.transact(lambda tables: tables.forget_entries(pipeline, kind, node))

    def _tables(self, connection: sqlite3.Connection) -> SqliteTables:
        return SqliteTables(SqliteSession(connection, self._clock))


class GroupCommitter:
    """Writes that wait at the same time share one transaction.

    A caller is answered after the commit that holds its write has returned, or with StateFailed after
    it was rolled back. Reads see what was committed before them and nothing else.

    After a commit that failed for any reason but a full disk, no later one is believed: the system may
    have dropped the unwritten pages, so that a second fsync succeeds and proves nothing. Every later
    write fails until the database was rescued: copied to a new file. A write attempts that, at most every
    few seconds. A full disk is different: SQLite gets that error from the write call, before any fsync,
    and the next commit writes all its pages again. So that group fails and the next one is attempted.

    Work that raises is rolled back alone: the rest of its group is committed without it.

    A caller that is cancelled leaves at once; its write stays in the group.
    """

    def __init__(self, database: StateDatabase) -> None:
        self.commits = 0
        self._database = database
        self._broken: BaseException | None = None
        self._rescue_at = 0.0
        self._closing = False
        self._closed = trio.Event()
        self._thread = GroupThread("store", self._carry_out, run_ended=self._abandon)

    async def ask(self, request: "_Request") -> Any:
        """Carry out a request in its turn; return its result once that is durable. Raises StateFailed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closing:
            raise StateFailed(f"{self._database.file} is closed")
        return await self._thread.ask(request)

    async def close(self) -> None:
        """Finish the requests already made, then close the database, even if the caller is cancelled."""
        # Bounded: out of memory, trio may have lost the part of it that wakes tasks for threads.
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            if not self._closing:
                # Set before the wait: a request made from here on would be queued behind the end of the thread.
                self._closing = True
                await self._thread.ask(_Close())
                self._thread.close()
                self._closed.set()
            await self._closed.wait()

    # Everything below runs in the thread.

    def _abandon(self) -> None:
        """The run that used the store ended without closing it."""
        self._database.close()
        self._thread.close()

    def _carry_out(self, group: "list[_Request]") -> None:
        writes = [request for request in group if isinstance(request, _Save | _Work)]
        if writes:
            self._commit(writes)
        # After the commit, whatever the order of asking: a read must not see what may yet be rolled back.
        for request in group:
            if isinstance(request, _Look):
                request.answer = self._read(request.work)
            elif isinstance(request, _Close):
                request.answer = outcome.capture(self._close)

    def _close(self) -> None:
        # The last connection to close checkpoints.
        with after_backup(self._database.file.parent):
            self._database.close()

    def _commit(self, writes: "list[_Save | _Work]") -> None:
        if self._broken is not None and not self._try_rescue(self._broken):
            for request in writes:
                request.answer = outcome.Error(self._broken_error(self._broken))
            return
        try:
            with appending_only_under_backup(self._database.connection, self._database.file.parent):
                self._transact(list(_steps(writes)))
        # Whatever the error is, it must reach the tasks that wait, or they wait for ever.
        except Exception as error:
            self._roll_back(error)
            for request in writes:
                request.answer = outcome.Error(self._failure(error))
        else:
            self.commits += 1
            for request in writes:
                if isinstance(request, _Save):
                    request.answer = outcome.Value(None)

    def _try_rescue(self, broken: BaseException) -> bool:
        """Rescue the database after a disk error, unless that just failed; returns whether it worked."""
        if time.monotonic() < self._rescue_at:
            return False
        try:
            self._database.rescue()
        except EnvironmentUnfit as error:
            log.warning("%s still cannot be written: %s", self._database.file, error.message)
            self._rescue_at = time.monotonic() + RESCUE_SECONDS
            return False
        log.warning("%s was rescued after a disk error: %s", self._database.file, describe(broken))
        self._broken = None
        return True

    def _transact(self, steps: "list[Statement | _Work]") -> None:
        connection = self._database.connection
        crash_point.reach("store.before_commit")
        if len(steps) == 1 and not isinstance(steps[0], _Work):
            # Each call into SQLite gives the interpreter away, and a busy trio thread gives it back only
            # after 5 ms: a lone statement that commits by itself is a third of the calls.
            connection.execute(*steps[0])
        else:
            # Immediate: a deferred transaction takes the write lock at its first write, and may fail half-way.
            connection.execute("BEGIN IMMEDIATE")
            for step in steps:
                if isinstance(step, _Work):
                    self._perform(step, alone=len(steps) == 1)
                else:
                    connection.execute(*step)
            crash_point.reach("store.within_commit")
            # Invariant 11: with synchronous = FULL this returns after the disk confirmed the write-ahead log.
            connection.execute("COMMIT")
        crash_point.reach("store.after_commit")

    def _perform(self, request: "_Work", *, alone: bool) -> None:
        """Run one piece of work; if it raises, roll back that piece only."""
        connection = self._database.connection
        if not alone:
            # A refusal undoes this piece of work, and not the writes of other tasks in the group.
            connection.execute("SAVEPOINT work")
        try:
            request.answer = outcome.Value(request.work(connection))
        # The work is the caller's, and so are its errors.
        except Exception as refusal:
            if isinstance(refusal, sqlite3.Error) and not isinstance(refusal, _OWN_ERRORS):
                # The disk or the file, not this piece of work: nothing of the group may be believed.
                raise
            request.answer = outcome.Error(refusal)
            connection.execute("ROLLBACK" if alone else "ROLLBACK TO work")
            if alone:
                # The COMMIT that follows needs a transaction, even an empty one.
                connection.execute("BEGIN")
        if not alone:
            connection.execute("RELEASE work")

    def _roll_back(self, error: Exception) -> None:
        # A failed fsync may have dropped pages, so that the success of a later one proves nothing.
        if isinstance(error, sqlite3.Error) and _code(error) not in NOTHING_WRITTEN:
            self._broken = error
        try:
            if self._database.connection.in_transaction:
                self._database.connection.execute("ROLLBACK")
        except sqlite3.Error as failed:
            self._broken = failed

    def _read(self, work: Work) -> outcome.Outcome[Any]:
        try:
            # A read that fails is the answer to one caller. The thread goes on for the others.
            return outcome.Value(work(self._database.connection))
        except Exception as error:
            return outcome.Error(use_error(self._database.file, STATE, "read", error, CHECK_DISK))

    def _failure(self, error: Exception) -> StateFailed:
        full = isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL
        suggestion = "free space on that disk" if full else CHECK_DISK
        return use_error(self._database.file, STATE, "written", error, suggestion)

    def _broken_error(self, broken: BaseException) -> StateFailed:
        failure = StateFailed(
            f"{self._database.file} takes no more writes, because an earlier one failed: {describe(broken)}",
            suggestion=CHECK_DISK,
        )
        failure.__cause__ = broken
        return failure


@dataclass(slots=True, eq=False)
class _Save(Request):
    """Replace these rows."""

    rows: list[StoredEntry]


@dataclass(slots=True, eq=False)
class _Work(Request):
    """Run this in its turn among the writes; the result is an answer once it is durable."""

    work: Work


@dataclass(slots=True, eq=False)
class _Look(Request):
    """Run this, which only reads, on what is committed."""

    work: Work


class _Close(Request):
    __slots__ = ()


_Request: TypeAlias = _Save | _Work | _Look | _Close

_OWN_ERRORS = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.NotSupportedError, sqlite3.ProgrammingError)
"""Errors of a piece of work itself: database and disk are sound."""


def _steps(writes: list[_Save | _Work]) -> Iterator[Statement | _Work]:
    """Yield the writes in order, with the rows of saves that follow each other in one statement."""
    rows: list[StoredEntry] = []
    for write in (*writes, None):
        if isinstance(write, _Save):
            rows += write.rows
            continue
        for start in range(0, len(rows), _ROWS_MAX):
            chunk = rows[start : start + _ROWS_MAX]
            places = ", ".join(["(?, ?, ?, ?)"] * len(chunk))
            yield f"INSERT OR REPLACE INTO entries VALUES {places}", [value for row in chunk for value in row]
        rows = []
        if write is not None:
            yield write


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
