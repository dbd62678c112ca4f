"""LetterFilter: which dead letters are meant."""

import json

import msgspec

from conduit_py.store.letter import LetterState


class LetterFilter(msgspec.Struct, frozen=True):
    """Letters that fit everything that is said; nothing said means all of them."""

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


def conditions(filter: LetterFilter) -> tuple[str, list[object]]:
    """The filter as a condition in SQL, and its values."""
    parts: list[tuple[str, object]] = [
        ("id IN (SELECT value FROM json_each(?))", None if filter.ids is None else json.dumps(filter.ids)),
        ("pipeline = ?", filter.pipeline),
        ("EXISTS (SELECT 1 FROM json_each(nodes) WHERE value = ?)", filter.node),
        ("cause = ?", filter.cause),
        ("instr(lower(error), lower(?)) > 0", filter.text),
        ("source = ?", filter.source),
        ("state = ?", filter.state and filter.state.value),
        ("last_at >= ?", filter.since),
        ("last_at < ?", filter.until),
    ]
    said = [(sql, value) for sql, value in parts if value is not None]
    return " AND ".join(["1", *(sql for sql, _ in said)]), [value for _, value in said]
