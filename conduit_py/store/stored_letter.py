"""StoredLetter: a dead letter as a store keeps it: its identity, its refusals, whether it waits to be replayed."""

import re
from base64 import b32encode
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from conduit_py.batch import Piece, delivery_key
from conduit_py.dead_letter import DeadLetter
from conduit_py.record import Record
from conduit_py.wire_error import safe_text

ERROR_LENGTH_MAX = 8192
HISTORY_MAX = 20
"""Refusals that a letter remembers: those of the first attempt and the latest ones."""


class LetterState(StrEnum):
    """Whether a letter waits for an operator or is queued for replay."""

    KEPT = "kept"
    QUEUED = "queued"


class Refusal(msgspec.Struct, frozen=True):
    """Which node refused a letter's record, why, and when."""

    node: str
    error: str
    at: float
    attempt: int = 1
    """Which delivery of the letter: 1 is the first one, by the source; each replay is one more."""
    tries: int = 1
    """How often the node tried, by its own retry policy."""
    location: str | None = None
    """File, line and function of the user's code that raised the error."""


class StoredLetter(msgspec.Struct, frozen=True):
    """A refused message. (pipeline, source, position, piece) is its identity and decides its id and delivery key.

    `records` has the record as it stood at each node that refuses it still, which is where it enters
    again. `queued_for` are those of these nodes to which it is on its way. `history` has the refusals,
    the newest last.
    """

    pipeline: str
    source: str
    position: bytes
    piece: Piece
    records: dict[str, Record]
    history: list[Refusal]
    attempts: int = 1
    state: LetterState = LetterState.KEPT
    queued_for: list[str] = []
    originals: dict[str, Record] = {}
    """The records as they were before an operator edited them."""

    @classmethod
    def of(cls, letter: DeadLetter) -> "StoredLetter":
        """The stored form of a letter that the pipeline wrote."""
        history = _refusals(letter, 1)
        return cls(
            letter.pipeline, letter.message.source, letter.position, letter.message.piece, letter.records, history
        )

    @property
    def id(self) -> str:
        """Short, and the same whenever this message is refused."""
        return letter_id(self.pipeline, self.source, self.position, self.piece)

    @property
    def refusals(self) -> list[Refusal]:
        """The latest refusal of each node that refuses it still. The first one counts as the cause."""
        latest = {refusal.node: refusal for refusal in self.history}
        return [latest[node] for node in self.records]

    @property
    def node(self) -> str:
        return self.refusals[0].node

    @property
    def error(self) -> str:
        return self.refusals[0].error

    @property
    def cause(self) -> str:
        return cause_of(self.error)

    @property
    def record(self) -> Record:
        """The record at the first node that refused it."""
        return self.records[self.node]

    @property
    def first_at(self) -> float:
        return self.history[0].at

    @property
    def last_at(self) -> float:
        return self.history[-1].at

    def for_replay(self, nodes: Collection[str]) -> "StoredLetter":
        """The letter queued for those of its nodes."""
        chosen = [node for node in self.records if node in nodes]
        return msgspec.structs.replace(self, state=LetterState.QUEUED, queued_for=chosen)

    def with_records(self, records: Mapping[str, Record]) -> "StoredLetter":
        """The letter with other records at some of its nodes; the originals are kept."""
        originals = {**{node: self.records[node] for node in records}, **self.originals}
        return msgspec.structs.replace(self, records={**self.records, **records}, originals=originals)

    def merge(self, fresh: "StoredLetter") -> "StoredLetter":
        """The letter after its message was refused once more after a crash: edits and queueing by an operator stay."""
        # What an operator decided counts: a crash of the pipeline must not undo an edit or a replay.
        if self.originals or self.state is LetterState.QUEUED:
            fresh = msgspec.structs.replace(
                fresh, records=self.records, originals=self.originals, state=self.state, queued_for=self.queued_for
            )
            return msgspec.structs.replace(fresh, history=self.history, attempts=self.attempts)
        return fresh


def remaining_letters(letter: StoredLetter, refusals: Sequence[DeadLetter]) -> list[StoredLetter]:
    """What is left of a replayed letter once every node it was sent to has answered: nothing, if all accepted it.

    Nodes to which it was not sent refuse it still. A piece that was refused further down becomes a letter of
    its own and replaces this one: the other pieces were delivered, and must not be delivered again.
    """
    waiting = {node: record for node, record in letter.records.items() if node not in letter.queued_for}
    left: dict[Piece, StoredLetter] = {}
    if waiting:
        left[letter.piece] = _keep_rest(letter, letter.piece, waiting, [])
    for refused in refusals:
        piece = refused.message.piece
        news = _refusals(refused, letter.attempts + 1)
        records = dict(refused.records)
        if piece == letter.piece:
            # A node may have changed the record before it refused it: what was sent to it counts.
            records |= {node: letter.records[node] for node in records if node in letter.queued_for}
            records = waiting | records
        left[piece] = _keep_rest(letter, piece, records, news)
    return list(left.values())


def _refusals(letter: DeadLetter, attempt: int) -> list[Refusal]:
    refusals = []
    for each in letter.failures:
        location = each.location and _storable(each.location)
        refusals.append(Refusal(each.node, _storable(each.error), letter.at, attempt, each.attempt, location))
    return refusals


def _storable(error: str) -> str:
    # An error may quote a whole record, and a letter keeps up to HISTORY_MAX of them.
    return safe_text(error[:ERROR_LENGTH_MAX])


def _keep_rest(letter: StoredLetter, piece: Piece, records: dict[str, Record], news: list[Refusal]) -> StoredLetter:
    originals = {node: record for node, record in letter.originals.items() if node in records}
    history = _shorten(letter.history + news, records)
    attempts = letter.attempts + 1
    return StoredLetter(
        letter.pipeline, letter.source, letter.position, piece, records, history, attempts, originals=originals
    )


def _shorten(history: list[Refusal], nodes: Collection[str]) -> list[Refusal]:
    """The first refusals, the last ones, and the latest of each of these nodes."""
    latest = {refusal.node: index for index, refusal in enumerate(history) if refusal.node in nodes}
    half = HISTORY_MAX // 2
    wanted = {*range(half), *range(len(history) - half, len(history)), *latest.values()}
    return [refusal for index, refusal in enumerate(history) if index in wanted]


def letter_id(pipeline: str, source: str, position: bytes, piece: Piece) -> str:
    """16 letters and digits that identify a message: 80 bits of a hash."""
    text = ".".join(map(str, piece))
    key = delivery_key((pipeline.encode(), source.encode(), position, text.encode()))
    return b32encode(key[:10]).decode().lower()


def cause_of(error: str) -> str:
    """The error without what differs between records: numbers, ids and quoted values; quoted names stay."""
    # Bounded, because a record decides what an error quotes, and every pattern reads all of it.
    text = error[:1000]
    for pattern, mark in _PARTICULARS:
        text = pattern.sub(mark, text)
    return " ".join(text.split())[:200]


_PARTICULARS = [
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "#"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{16,}\b"), "#"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[-+]\d\d:?\d\d)?)?\b"), "#"),
    (re.compile(r"(?<![A-Za-z_0-9])[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "#"),
    (re.compile(r"(?<!\w)'(?![A-Za-z_.]{1,40}'(?!\w))(?:[^'\\\n]|\\.)*'(?!\w)"), "'…'"),
    (re.compile(r'"(?![A-Za-z_.]{1,40}")(?:[^"\\\n]|\\.)*"'), '"…"'),
]


class LetterFilter(msgspec.Struct, frozen=True):
    """Letters that match every field that is set; none set matches all."""

    ids: tuple[str, ...] | None = None
    pipeline: str | None = None
    node: str | None = None
    """A node that refuses it still."""
    cause: str | None = None
    """The cause, as `causes` names it."""
    text: str | None = None
    """A part of the error, in upper or lower case."""
    source: str | None = None
    state: LetterState | None = None
    since: float | None = None
    """Last refused then or later, in seconds since 1970."""
    until: float | None = None
    """Last refused before then."""


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


class NumberedLetter(NamedTuple):
    """A letter with its place in the order of letters."""

    number: int
    letter: StoredLetter


class QueuedLetter(NamedTuple):
    """A letter queued for replay."""

    turn: int
    letter: StoredLetter


class SettledLetter(NamedTuple):
    """A letter that was replayed, and what is left of it: nothing, if it was delivered.

    `turn` and `attempts` distinguish this replay from a later one of the same letter.
    """

    id: str
    turn: int
    attempts: int
    left: list[StoredLetter]

    @classmethod
    def of(cls, queued: QueuedLetter, left: list[StoredLetter]) -> "SettledLetter":
        return cls(queued.letter.id, queued.turn, queued.letter.attempts, left)
