"""LetterTable: dead letters in a SQLite database: their format, and every question and change there is.

It is synchronous, commits nothing by itself and is used from one thread at a time: a LetterBox runs it.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from conduit_py.batch import Piece
from conduit_py.errors import LetterBusy, LetterUnknown
from conduit_py.record import Record
from conduit_py.record_codec import decode_record, encode_record
from conduit_py.store.sqlite.database import APPLICATION_ID, FileFormat
from conduit_py.store.stored_letter import LetterFilter, LetterState, Refusal, StoredLetter, conditions

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


class LetterSummary(msgspec.Struct, frozen=True):
    """A letter without its records: what a list shows."""

    id: str
    pipeline: str
    source: str
    nodes: list[str]
    """Every node that refuses it still; `node` is the first."""
    node: str
    error: str
    cause: str
    state: LetterState
    queued_for: list[str]
    attempts: int
    edited: bool
    first_at: float
    last_at: float
    bytes: int


class LetterPage(NamedTuple):
    """Some letters, newest first, and where the next ones begin; `total` counts all that match."""

    letters: list[LetterSummary]
    next: int | None
    total: int


class CauseCount(msgspec.Struct, frozen=True):
    """How many letters were refused by one node in one way."""

    pipeline: str
    node: str
    cause: str
    count: int
    first_at: float
    last_at: float


class LetterCount(NamedTuple):
    """The letters of a pipeline in one state."""

    pipeline: str
    state: LetterState
    letters: int
    bytes: int


class QueuedLetter(NamedTuple):
    """A letter that waits for its turn to be sent again."""

    turn: int
    letter: StoredLetter


class SettledLetter(NamedTuple):
    """A letter that was sent again, and what is left of it: nothing, if it was delivered.

    `turn` and `attempts` tell this sending from a later one of the same letter.
    """

    id: str
    turn: int
    attempts: int
    left: list[StoredLetter]

    @classmethod
    def of(cls, queued: QueuedLetter, left: list[StoredLetter]) -> "SettledLetter":
        return cls(queued.letter.id, queued.turn, queued.letter.attempts, left)


class _Kept(msgspec.Struct, frozen=True):
    """What is in the column `letter`: that which no other column has."""

    position: bytes
    piece: Piece
    records: dict[str, bytes]
    history: list[Refusal]
    originals: dict[str, bytes] = {}


class LetterTable:
    """Dead letters on a connection. A message has one row at most, whatever happens to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # Turns must grow while anybody waits for the next one, also when the last letter with one is gone.
        self._turn: int = self._one("SELECT coalesce(max(turn), 0) FROM letters")

    def store(self, letters: Iterable[StoredLetter]) -> None:
        """Keep letters, each in place of an earlier one about the same message."""
        for letter in letters:
            known = self._find(letter.id)
            self._put(known.again(letter) if known is not None else letter)

    def letter(self, id: str) -> StoredLetter:
        found = self._find(id)
        if found is None:
            raise LetterUnknown(f"there is no dead letter {id!r}", suggestion="it may have been delivered or discarded")
        return found

    def page(self, filter: LetterFilter, before: int | None, limit: int) -> LetterPage:
        where, values = conditions(filter)
        total = self._one(f"SELECT count(*) FROM letters WHERE {where}", *values)
        sql = f"SELECT number, {_SUMMARY} FROM letters WHERE {where} AND number < ? ORDER BY number DESC LIMIT ?"
        rows = self._connection.execute(sql, (*values, 2**62 if before is None else before, limit + 1)).fetchall()
        following = rows[limit - 1][0] if len(rows) > limit else None
        return LetterPage([_summary(row[1:]) for row in rows[:limit]], following, total)

    def causes(self, filter: LetterFilter, limit: int) -> list[CauseCount]:
        """The most frequent causes, those first."""
        where, values = conditions(filter)
        sql = (
            "SELECT pipeline, node, cause, count(*), min(first_at), max(last_at) FROM letters "
            f"WHERE {where} GROUP BY pipeline, node, cause ORDER BY count(*) DESC, pipeline, node, cause LIMIT ?"
        )
        return [CauseCount(*row) for row in self._connection.execute(sql, (*values, limit))]

    def counts(self) -> list[LetterCount]:
        sql = "SELECT pipeline, state, count(*), sum(bytes) FROM letters GROUP BY pipeline, state"
        return [LetterCount(row[0], LetterState(row[1]), row[2], row[3]) for row in self._connection.execute(sql)]

    def queue(self, wanted: Mapping[str, Collection[str]]) -> list[str]:
        """Mark letters, by id, as to be sent to these of their nodes. Gives those that were not queued already."""
        queued = []
        for id, nodes in wanted.items():
            letter = self._find(id)
            if letter is not None and letter.state is LetterState.KEPT and not letter.records.keys().isdisjoint(nodes):
                self._turn += 1
                self._put(letter.queued(nodes), self._turn)
                queued.append(id)
        return queued

    def queued(self, pipeline: str, after: int, limit: int) -> list[QueuedLetter]:
        """The queued letters of a pipeline whose turn comes after this one, in their order."""
        sql = (
            f"SELECT turn, {_WHOLE} FROM letters WHERE pipeline = ? AND state = 'queued' AND turn > ? "
            "ORDER BY turn LIMIT ?"
        )
        return [
            QueuedLetter(row[0], _letter(row[1:])) for row in self._connection.execute(sql, (pipeline, after, limit))
        ]

    def settle(self, settled: Iterable[SettledLetter]) -> None:
        """Put what is left of letters in their place. What was discarded or queued anew meanwhile stays as it is.

        So to settle the same again changes nothing.
        """
        for id, turn, attempts, left in settled:
            sql = "SELECT count(*) FROM letters WHERE id = ? AND turn = ? AND attempts = ? AND state = 'queued'"
            if self._one(sql, id, turn, attempts):
                if all(each.id != id for each in left):
                    self._connection.execute("DELETE FROM letters WHERE id = ?", (id,))
                for each in left:
                    self._put(each)

    def edit(self, id: str, records: Mapping[str, Record]) -> StoredLetter:
        letter = self.letter(id)
        if letter.state is LetterState.QUEUED:
            raise LetterBusy(
                f"dead letter {id!r} is about to be sent again and cannot be edited",
                suggestion="wait until it is delivered or refused",
            )
        edited = letter.edited(records)
        self._put(edited)
        return edited

    def discard(self, filter: LetterFilter) -> int:
        where, values = conditions(filter)
        return self._connection.execute(f"DELETE FROM letters WHERE {where}", values).rowcount

    def retain(self, pipeline: str, since: float | None, count_max: int | None) -> int:
        """Remove letters last refused before `since`, and the oldest of those above `count_max`; queued ones stay."""
        removed = 0
        if since is not None:
            sql = "DELETE FROM letters WHERE pipeline = ? AND state = 'kept' AND last_at < ?"
            removed += self._connection.execute(sql, (pipeline, since)).rowcount
        if count_max is not None:
            sql = (
                "DELETE FROM letters WHERE state = 'kept' AND number IN (SELECT number FROM letters "
                "WHERE pipeline = ? ORDER BY number DESC LIMIT -1 OFFSET ?)"
            )
            removed += self._connection.execute(sql, (pipeline, count_max)).rowcount
        return removed

    def _find(self, id: str) -> StoredLetter | None:
        row = self._connection.execute(f"SELECT {_WHOLE} FROM letters WHERE id = ?", (id,)).fetchone()
        return _letter(row) if row is not None else None

    def _put(self, letter: StoredLetter, turn: int = 0) -> None:
        """Write a letter over the one with the same id, whose place in the order it takes."""
        blob = _blob(letter)
        queued = letter.state is LetterState.QUEUED
        if queued and not turn:
            turn = self._one("SELECT turn FROM letters WHERE id = ?", letter.id)
        values = {
            "id": letter.id,
            "pipeline": letter.pipeline,
            "source": letter.source,
            "nodes": json.dumps(list(letter.records)),
            "node": letter.node,
            "error": letter.error,
            "cause": letter.cause,
            "state": letter.state.value,
            "queued_for": json.dumps(letter.queued_for),
            "turn": turn if queued else 0,
            "attempts": letter.attempts,
            "edited": bool(letter.originals),
            "first_at": letter.first_at,
            "last_at": letter.last_at,
            "bytes": len(blob),
            "letter": blob,
        }
        self._connection.execute(_UPSERT, values)

    def _one(self, sql: str, *values: object) -> Any:
        return self._connection.execute(sql, values).fetchone()[0]


_COLUMNS = (
    "id", "pipeline", "source", "nodes", "node", "error", "cause", "state", "queued_for", "turn", "attempts",
    "edited", "first_at", "last_at", "bytes", "letter",
)  # fmt: skip
_UPSERT = (
    f"INSERT INTO letters ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)
_SUMMARY = ", ".join(LetterSummary.__struct_fields__)
_WHOLE = "pipeline, source, letter, attempts, state, queued_for"
_KEPT = msgspec.msgpack.Decoder(_Kept)


def size_of(letter: StoredLetter) -> int:
    """How many bytes the letter takes."""
    return len(_blob(letter))


def encode_letter(letter: StoredLetter) -> bytes:
    """The whole letter as bytes. A record that cannot be kept raises RecordRefused."""
    return msgspec.msgpack.encode(
        (letter.pipeline, letter.source, _blob(letter), letter.attempts, letter.state, json.dumps(letter.queued_for))
    )


def decode_letter(encoded: bytes) -> StoredLetter:
    """The letter of which `encode_letter` made these bytes."""
    return _letter(msgspec.msgpack.decode(encoded))


def _summary(row: Sequence[Any]) -> LetterSummary:
    fields = dict(zip(LetterSummary.__struct_fields__, row, strict=True))
    fields |= {"nodes": json.loads(fields["nodes"]), "queued_for": json.loads(fields["queued_for"])}
    return LetterSummary(**fields | {"state": LetterState(fields["state"]), "edited": bool(fields["edited"])})


def _blob(letter: StoredLetter) -> bytes:
    records = {node: encode_record(record) for node, record in letter.records.items()}
    originals = {node: encode_record(record) for node, record in letter.originals.items()}
    return msgspec.msgpack.encode(_Kept(letter.position, letter.piece, records, letter.history, originals))


def _letter(row: Sequence[Any]) -> StoredLetter:
    pipeline, source, blob, attempts, state, queued_for = row
    kept = _KEPT.decode(blob)
    records, originals = (
        {node: decode_record(packed) for node, packed in each.items()} for each in (kept.records, kept.originals)
    )
    return StoredLetter(
        pipeline,
        source,
        kept.position,
        kept.piece,
        records,
        kept.history,
        attempts,
        LetterState(state),
        json.loads(queued_for),
        originals,
    )
