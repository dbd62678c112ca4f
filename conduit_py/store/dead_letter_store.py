"""DeadLetterStore: the dead letters that a store keeps, and what a caller may rely on.

SqlLetters has the statements of both databases; a backend only opens their transactions.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from conduit_py.dead_letter import DeadLetter
from conduit_py.defaults import LETTERS_LISTED, LETTERS_PAGE_MAX
from conduit_py.errors import LetterBusy, LetterUnknown
from conduit_py.record import Record
from conduit_py.store.letter_codec import ROW, encode_content, letter_of_row
from conduit_py.store.sql_tables import SqlSession, upsert
from conduit_py.store.stored_letter import (
    CauseCount,
    LetterCount,
    LetterFilter,
    LetterPage,
    LetterState,
    LetterSummary,
    NumberedLetter,
    QueuedLetter,
    SettledLetter,
    StoredLetter,
)

T = TypeVar("T")


class DeadLetterStore(ABC):
    """The dead letters of all pipelines with the handler `journal`.

    A message has one letter at most: to store it again replaces the letter. As with the store, a write
    is durable when it returns, and atomic; one that raises StateFailed, or whose caller is cancelled,
    may or may not have become durable, but never in part. One trio run uses it.
    """

    def __init__(self) -> None:
        self._watchers: dict[str, Callable[[], None]] = {}
        self.counts: list[LetterCount] = []
        """The result of the last `count`."""

    async def store(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters, in this order."""
        await self._change(lambda table: table.store(map(StoredLetter.of, letters)))

    async def letter(self, id: str) -> StoredLetter:
        """One letter with its records. Raises LetterUnknown."""
        return await self._look(lambda table: table.letter(id))

    async def page(self, filter: LetterFilter, before: int | None = None, limit: int = LETTERS_LISTED) -> LetterPage:
        """Letters that match, newest first, from where the last page ended."""
        return await self._look(lambda table: table.page(filter, before, limit))

    async def read(self, filter: LetterFilter, before: int | None, limit: int) -> list[NumberedLetter]:
        """Letters that match with their records, newest first, those before a number."""
        return await self._look(lambda table: table.read(filter, before, limit))

    async def causes(self, filter: LetterFilter, limit: int = LETTERS_PAGE_MAX) -> list[CauseCount]:
        """Letters that match, counted by node and cause; the most frequent first."""
        return await self._look(lambda table: table.causes(filter, limit))

    async def count(self) -> list[LetterCount]:
        """How many letters there are, and how large, by pipeline and state."""
        self.counts = await self._look(SqlLetters.counts)
        return self.counts

    async def queue(self, pipeline: str, wanted: Mapping[str, Collection[str]]) -> list[str]:
        """Queue letters of a pipeline, by id, for replay to these of their nodes; a running pipeline is notified.

        Returns the ids of those that were not queued before. Queueing a letter twice has no further effect.
        """
        queued = await self._change(lambda table: table.queue(wanted))
        # After the commit: a replay that looks at once must find them.
        if queued and pipeline in self._watchers:
            self._watchers[pipeline]()
        return queued

    async def replay_queue(self, pipeline: str, after: int, limit: int) -> list[QueuedLetter]:
        """The queued letters of a pipeline whose turn is after this one, in order."""
        return await self._look(lambda table: table.replay_queue(pipeline, after, limit))

    async def settle(self, settled: Sequence[SettledLetter]) -> None:
        """Replace letters that were replayed by what is left of them, in one transaction."""
        await self._change(lambda table: table.settle(settled))

    async def edit(self, id: str, records: Mapping[str, Record]) -> StoredLetter:
        """Replace the records at some nodes of a letter. Raises LetterUnknown, and LetterBusy for a queued one."""
        return await self._change(lambda table: table.edit(id, records))

    async def discard(self, filter: LetterFilter) -> int:
        """Delete the letters that match. One that is being replayed may still be delivered."""
        return await self._change(lambda table: table.discard(filter))

    async def retain(self, pipeline: str, since: float | None, count_max: int | None) -> int:
        """Delete letters last refused before `since`, and the oldest above `count_max`; queued letters stay."""
        return await self._change(lambda table: table.retain(pipeline, since, count_max))

    @contextmanager
    def watch(self, pipeline: str, notice: Callable[[], None]) -> Iterator[None]:
        """Within the block, `notice` is called when letters of the pipeline were queued."""
        self._watchers[pipeline] = notice
        try:
            yield
        finally:
            # A later run of the pipeline may have replaced ours already.
            if self._watchers.get(pipeline) is notice:
                del self._watchers[pipeline]

    @abstractmethod
    async def close(self) -> None:
        """Finish what is running, then release everything. The store it belongs to calls this."""

    @abstractmethod
    async def _look(self, work: "Callable[[SqlLetters], T]") -> T:
        """Run work that only reads."""

    @abstractmethod
    async def _change(self, work: "Callable[[SqlLetters], T]") -> T:
        """Run work in one transaction: its changes are durable on return, or there are none."""


class SqlLetters:
    """The table of letters in one transaction. A message has at most one row.

    `next_turn` returns the next place in the replay queue. Turns must grow, even when the letter with the last one was
    deleted: a running replay waits for turns after the last one that it has seen.
    """

    def __init__(self, sql: SqlSession, next_turn: Callable[[], int]) -> None:
        self.sql = sql
        self._next_turn = next_turn

    def store(self, letters: Iterable[StoredLetter]) -> None:
        """Keep letters, each in place of an earlier one about the same message."""
        for letter in letters:
            known = self._find(letter.id)
            self._put(known.merge(letter) if known is not None else letter)

    def letter(self, id: str) -> StoredLetter:
        found = self._find(id)
        if found is None:
            raise LetterUnknown(f"there is no dead letter {id!r}", suggestion="it may have been delivered or discarded")
        return found

    def page(self, filter: LetterFilter, before: int | None, limit: int) -> LetterPage:
        where, values = self._conditions(filter)
        total = self.sql.value(f"SELECT count(*) FROM letters WHERE {where}", *values)
        sql = f"SELECT number, {_SUMMARY} FROM letters WHERE {where} AND number < ? ORDER BY number DESC LIMIT ?"
        rows = self.sql.rows(sql, *values, 2**62 if before is None else before, limit + 1)
        following = rows[limit - 1][0] if len(rows) > limit else None
        return LetterPage([_summary(row[1:]) for row in rows[:limit]], following, total)

    def read(self, filter: LetterFilter, before: int | None, limit: int) -> list[NumberedLetter]:
        where, values = self._conditions(filter)
        sql = f"SELECT number, {ROW} FROM letters WHERE {where} AND number < ? ORDER BY number DESC LIMIT ?"
        rows = self.sql.rows(sql, *values, 2**62 if before is None else before, limit)
        return [NumberedLetter(row[0], letter_of_row(row[1:])) for row in rows]

    def causes(self, filter: LetterFilter, limit: int) -> list[CauseCount]:
        """Letters by cause, the most frequent cause first."""
        where, values = self._conditions(filter)
        sql = (
            "SELECT pipeline, node, cause, count(*), min(first_at), max(last_at) FROM letters "
            f"WHERE {where} GROUP BY pipeline, node, cause ORDER BY count(*) DESC, pipeline, node, cause LIMIT ?"
        )
        return [CauseCount(*row) for row in self.sql.rows(sql, *values, limit)]

    def counts(self) -> list[LetterCount]:
        sql = "SELECT pipeline, state, count(*), CAST(sum(bytes) AS bigint) FROM letters GROUP BY pipeline, state"
        return [LetterCount(row[0], LetterState(row[1]), row[2], row[3]) for row in self.sql.rows(sql)]

    def queue(self, wanted: Mapping[str, Collection[str]]) -> list[str]:
        """Queue letters, by id, for these of their nodes. Returns the ids of those that were not queued before."""
        queued = []
        for id, nodes in wanted.items():
            letter = self._find(id)
            if letter is not None and letter.state is LetterState.KEPT and not letter.records.keys().isdisjoint(nodes):
                self._put(letter.for_replay(nodes), self._next_turn())
                queued.append(id)
        return queued

    def replay_queue(self, pipeline: str, after: int, limit: int) -> list[QueuedLetter]:
        """The queued letters of a pipeline whose turn comes after this one, in their order."""
        sql = (
            f"SELECT turn, {ROW} FROM letters WHERE pipeline = ? AND state = 'queued' AND turn > ? "
            "ORDER BY turn LIMIT ?"
        )
        return [QueuedLetter(row[0], letter_of_row(row[1:])) for row in self.sql.rows(sql, pipeline, after, limit)]

    def settle(self, settled: Iterable[SettledLetter]) -> None:
        """Replace letters by what is left of them. A letter that was discarded or queued again meanwhile is skipped.

        So settling the same letters twice changes nothing.
        """
        for id, turn, attempts, left in settled:
            # `turn` and `attempts`: a letter that was queued again belongs to another replay.
            sql = "SELECT count(*) FROM letters WHERE id = ? AND turn = ? AND attempts = ? AND state = 'queued'"
            if self.sql.value(sql, id, turn, attempts):
                if all(each.id != id for each in left):
                    self.sql.run("DELETE FROM letters WHERE id = ?", id)
                for each in left:
                    self._put(each)

    def edit(self, id: str, records: Mapping[str, Record]) -> StoredLetter:
        letter = self.letter(id)
        if letter.state is LetterState.QUEUED:
            # A running replay has read the old record already, and its end would overwrite the edit.
            raise LetterBusy(
                f"dead letter {id!r} is about to be sent again and cannot be edited",
                suggestion="wait until it is delivered or refused",
            )
        edited = letter.with_records(records)
        self._put(edited)
        return edited

    def discard(self, filter: LetterFilter) -> int:
        where, values = self._conditions(filter)
        return self.sql.run(f"DELETE FROM letters WHERE {where}", *values)

    def retain(self, pipeline: str, since: float | None, count_max: int | None) -> int:
        """Remove letters last refused before `since`, and the oldest of those above `count_max`; queued ones stay."""
        removed = 0
        if since is not None:
            sql = "DELETE FROM letters WHERE pipeline = ? AND state = 'kept' AND last_at < ?"
            removed += self.sql.run(sql, pipeline, since)
        if count_max is not None:
            sql = (
                "DELETE FROM letters WHERE state = 'kept' AND number IN (SELECT number FROM letters "
                f"WHERE pipeline = ? ORDER BY number DESC LIMIT {self.sql.dialect.no_limit} OFFSET ?)"
            )
            removed += self.sql.run(sql, pipeline, count_max)
        return removed

    def _conditions(self, filter: LetterFilter) -> tuple[str, list[object]]:
        """The filter as a condition, and its values."""
        dialect = self.sql.dialect
        ids = None if filter.ids is None else json.dumps(filter.ids)
        values: dict[str, object] = {
            f"id IN (SELECT value FROM {dialect.json_array.format('?')})": ids,
            "pipeline = ?": filter.pipeline,
            f"EXISTS (SELECT 1 FROM {dialect.json_array.format('nodes')} WHERE value = ?)": filter.node,
            "cause = ?": filter.cause,
            f"{dialect.text_position}(lower(error), lower(?)) > 0": filter.text,
            "source = ?": filter.source,
            "state = ?": filter.state and filter.state.value,
            "last_at >= ?": filter.since,
            "last_at < ?": filter.until,
        }
        given = {condition: value for condition, value in values.items() if value is not None}
        return " AND ".join(["1 = 1", *given]), list(given.values())

    def _find(self, id: str) -> StoredLetter | None:
        for row in self.sql.rows(f"SELECT {ROW} FROM letters WHERE id = ?", id):
            return letter_of_row(row)
        return None

    def _put(self, letter: StoredLetter, turn: int = 0) -> None:
        """Insert a letter, or replace the one with the same id and keep its place in the order."""
        queued = letter.state is LetterState.QUEUED
        # A queued letter keeps its turn when its message is refused once more.
        if queued and not turn:
            turn = self.sql.value("SELECT turn FROM letters WHERE id = ?", letter.id)
        content, text = encode_content(letter), self.sql.text
        self.sql.run(
            _PUT,
            letter.id,
            text(letter.pipeline),
            text(letter.source),
            json.dumps(list(letter.records)),
            text(letter.node),
            text(letter.error),
            text(letter.cause),
            letter.state.value,
            json.dumps(letter.queued_for),
            turn if queued else 0,
            letter.attempts,
            bool(letter.originals),
            letter.first_at,
            letter.last_at,
            len(content),
            content,
        )


_PUT = upsert(
    "letters",
    ("id",),
    (
        "pipeline", "source", "nodes", "node", "error", "cause", "state", "queued_for", "turn", "attempts",
        "edited", "first_at", "last_at", "bytes", "letter",
    ),
)  # fmt: skip
_SUMMARY = ", ".join(LetterSummary.__struct_fields__)


def _summary(row: Sequence[Any]) -> LetterSummary:
    fields = dict(zip(LetterSummary.__struct_fields__, row, strict=True))
    fields |= {"nodes": json.loads(fields["nodes"]), "queued_for": json.loads(fields["queued_for"])}
    return LetterSummary(**fields | {"state": LetterState(fields["state"]), "edited": bool(fields["edited"])})
