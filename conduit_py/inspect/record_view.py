"""RecordView: a record as a user sees it, as JSON, cut to a size and without secrets; and edits of such a view."""

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from time import thread_time
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import trio

from conduit_py.errors import RecordRefused
from conduit_py.record import CollectionSchema, Data, Payload, Record, Structured
from conduit_py.wire_error import safe_text

Redact: TypeAlias = Callable[[str], str]
DEPTH_MAX = 32
INTEGER_BITS_MAX = 4096
MARGIN = 16 * 1024
"""Characters behind the cut that are also searched, so that a secret across the cut is not shown in part."""


class RecordView(msgspec.Struct):
    """The visible form of a record; it shares nothing mutable with it."""

    value: Structured
    cut: list[str]
    """The paths of values that are not shown in full."""
    long: list[str | bytes]
    """Each text that was cut, in full, so that two views can be compared beyond the cut."""
    in_base64: list[str]
    """The paths of values that are bytes, and in base64 here."""

    def same_as(self, other: "RecordView") -> bool:
        return self.value == other.value and self.long == other.long


def view_record(record: Record, size_max: int, redact: Redact) -> RecordView:
    """Return a view of at most about `size_max` characters.

    Values without a JSON form are shown as text. The cost depends on `size_max`, not on the record.
    """
    showing = _ViewBuilder(size_max, redact)
    value = {
        "position": showing.raw(record.position, "position"),
        "operation": str(record.operation),
        "metadata": showing.value(record.metadata, "metadata", 0),
        "key": showing.data(record.key, "key"),
        "payload": {
            "before": showing.data(record.payload.before, "payload.before"),
            "after": showing.data(record.payload.after, "payload.after"),
        },
    }
    return RecordView(value, showing.cut, showing.long, showing.in_base64)


def view_schema(schema: CollectionSchema, size_max: int, redact: Redact) -> RecordView:
    """Return a view of a schema, as that of a record: names of columns are content of the source's system."""
    showing = _ViewBuilder(size_max, redact)
    fields = [msgspec.to_builtins(field) for field in schema.fields]
    value = {
        "collection": showing.value(schema.collection, "source_schema.collection", 0),
        "version": showing.value(schema.version, "source_schema.version", 0),
        "fields": showing.value(fields, "source_schema.fields", 0),
    }
    return RecordView(value, showing.cut, showing.long, showing.in_base64)


def fits_condition(record: Record, condition: Callable[[Record], bool], redact: Redact) -> bool:
    """Return True if a condition is true for a record. One without a value for it is not.

    A record with a secret in it fits none: by asking often enough, a secret could be guessed that no view shows.
    """
    try:
        fits = condition(record)
    except RecordRefused:
        return False
    parts = (record.metadata, record.key, record.payload.before, record.payload.after)
    return fits and not any(_holds_secret(each, redact) for each in parts)


class RecordCondition:
    """Finds the records for which a condition is true, in a bounded share of the time of a node."""

    SECONDS = 0.02
    """What it may take of each second."""

    # CPU time: what another process takes on a busy machine is not spent here.
    def __init__(
        self, condition: Callable[[Record], bool], redact: Redact, clock: Callable[[], float] = thread_time
    ) -> None:
        self._condition = condition
        self._redact = redact
        self._clock = clock
        self._since, self._spent = -math.inf, 0.0

    def find(self, record: Callable[[int], Record], count: int, most: int) -> list[int]:
        """Return the indices of the first `most` of `count` records that fit. It ends when its time is over."""
        found: list[int] = []
        for index in range(count):
            if len(found) == most or not self._has_time():
                break
            began = self._clock()
            if fits_condition(record(index), self._condition, self._redact):
                found.append(index)
            self._spent += self._clock() - began
        return found

    def _has_time(self) -> bool:
        now = trio.current_time()
        if now - self._since >= 1:
            self._since, self._spent = now, 0.0
        return self._spent < self.SECONDS


def _holds_secret(value: Any, redact: Redact) -> bool:
    # A loop: a record may be nested deeper than Python can recurse.
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, str | bytes):
            text = each if isinstance(each, str) else each.decode("latin-1")
            if redact(text) != text:
                return True
    return False


def apply_edit(original: Record, shown: Structured, given: Structured) -> Record:
    """Return the original record with the changes between `shown` and `given`, an edited copy of it.

    An unchanged part keeps its original value, also if the view shows it cut, masked or as text. A
    changed part is a JSON value, in base64 where the record has bytes. An edit that is not a valid
    record raises RecordRefused, which names the field.
    """
    whole = {**shown, **given}
    for name, kind, said in _PARTS:
        if not isinstance(whole[name], kind):
            raise RecordRefused(f"{name} must be {said}, not {type(whole[name]).__name__}")
    whole["payload"] = {**shown["payload"], **whole["payload"]}
    read = Record.from_map(whole)
    payload, before = whole["payload"], shown["payload"]
    return Record(
        original.position if whole["position"] == shown["position"] else read.position,
        read.operation,
        _fields(original.metadata, shown["metadata"], read.metadata),
        _data(original.key, shown["key"], whole["key"], read.key),
        Payload(
            _data(original.payload.before, before["before"], payload["before"], read.payload.before),
            _data(original.payload.after, before["after"], payload["after"], read.payload.after),
        ),
    )


_WRITTEN_AS_TEXT = (Decimal, datetime, date, time, timedelta, UUID, Enum)


class _ViewBuilder:
    """Adds one value after another until the room is used up."""

    def __init__(self, room: int, redact: Redact) -> None:
        self._room = room
        self._redact = redact
        self.cut: list[str] = []
        self.long: list[str | bytes] = []
        self.in_base64: list[str] = []

    def data(self, data: Data, path: str) -> Any:
        return self.raw(data, path) if isinstance(data, bytes) else self.value(data, path, 0)

    def raw(self, raw: bytes, path: str) -> str:
        """Return bytes in base64, with secrets removed."""
        self.in_base64.append(path)
        # Secrets are removed before the encoding, because base64 would hide them from `redact`.
        room = max(self._room * 3 // 4, 0)
        # In this encoding every byte is one character, so the cut is at the same place.
        text = raw[: room + MARGIN].decode("latin-1")
        redacted = self._bytewise(text)
        if len(redacted) > room or len(raw) > len(text):
            self._note_cut(raw, path)
        shown = base64.b64encode(redacted[: _end(room, redacted, whole=len(raw) == len(text))]).decode("ascii")
        self._room -= len(shown)
        return shown

    def value(self, value: Any, path: str, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            self._room -= 4
            return value
        if isinstance(value, str) and not isinstance(value, Enum):
            return self._text(value, path)
        if isinstance(value, int | float) and not isinstance(value, Enum):
            return self._number(value, path)
        if isinstance(value, bytes | bytearray | memoryview):
            return self.raw(bytes(value), path)
        # A record may be nested deeper than Python can recurse.
        if depth == DEPTH_MAX and isinstance(value, dict | list | tuple | set | frozenset):
            self.cut.append(path)
            return "…"
        if isinstance(value, dict):
            return self._object(value, path, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, path, depth)
        return self._text(_as_text(value), path)

    def _text(self, text: str, path: str) -> str:
        room = max(self._room, 0)
        near = text[: room + MARGIN]
        redacted = safe_text(self._redact(near))
        if len(redacted) > room or len(near) < len(text):
            self._note_cut(text, path)
        shown = redacted[: _end(room, redacted, whole=len(near) == len(text))]
        self._room -= len(shown) + 2
        return shown

    def _number(self, value: int | float, path: str) -> int | float | str:
        # Python refuses to print integers of thousands of digits, and takes quadratic time before that.
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
            self.cut.append(path)
            return f"an integer of {value.bit_length()} bits"
        text = repr(value)
        self._room -= len(text)
        redacted = self._redact(text)
        if redacted != text:
            return redacted
        return text if isinstance(value, float) and not math.isfinite(value) else value

    def _object(self, fields: dict[Any, Any], path: str, depth: int) -> Structured:
        shown: Structured = {}
        for key, item in fields.items():
            if self._room <= 0:
                self.cut.append(path)
                break
            name = self._text(key if isinstance(key, str) else repr(key), path)
            # Keys such as 1 and "1" look the same. An edit of the view needs a distinct name for each.
            while name in shown:
                name += "'"
            shown[name] = self.value(item, f"{path}.{name}", depth + 1)
        return shown

    def _list(self, items: Iterable[Any], path: str, depth: int) -> list[Any]:
        shown: list[Any] = []
        for index, item in enumerate(items):
            if self._room <= 0:
                self.cut.append(path)
                break
            self._room -= 1
            shown.append(self.value(item, f"{path}[{index}]", depth + 1))
        return shown

    def _note_cut(self, whole: str | bytes, path: str) -> None:
        self.cut.append(path)
        self.long.append(whole)

    def _bytewise(self, text: str) -> bytes:
        """Return the bytes of the text without secrets, which `redact` finds in UTF-8 text."""
        raw = text.encode("latin-1")
        readable = raw.decode("utf-8", errors="surrogateescape")
        return self._redact(readable).encode("utf-8", errors="surrogateescape")


def _end(room: int, redacted: str | bytes, *, whole: bool) -> int:
    """Where to cut a redacted text, of which `whole` says whether it was searched to its end."""
    # Masks are shorter than secrets, so the end of what was searched may come into view, with half a secret there.
    return room if whole else max(min(room, len(redacted) - MARGIN), 0)


def _as_text(value: object) -> str:
    if isinstance(value, _WRITTEN_AS_TEXT):
        return str(msgspec.to_builtins(value))
    try:
        return repr(value)
    except Exception:  # plugin boundary: the class is the user's
        return f"<{type(value).__name__} without a repr>"


_PARTS: list[tuple[str, type[Any], str]] = [
    ("position", str, "base64 text"),
    ("metadata", dict, "an object"),
    ("payload", dict, "an object"),
]


def _data(original: Data, shown: Any, given: Any, read: Data) -> Data:
    if _same(given, shown):
        return original
    if isinstance(original, dict) and isinstance(shown, dict) and isinstance(read, dict):
        return _fields(original, shown, read)
    return read


def _fields(original: dict[Any, Any], shown: Structured, given: Structured) -> dict[Any, Any]:
    # Names that are not text, or contain a secret, look different in the view. Only their order is the same.
    names = dict(zip(shown, original, strict=False))
    return {
        names.get(name, name): _value(original[names[name]], shown[name], value) if name in names else value
        for name, value in given.items()
    }


def _value(original: Any, shown: Any, given: Any) -> Any:
    if _same(given, shown):
        return original
    if isinstance(original, dict) and isinstance(shown, dict) and isinstance(given, dict):
        return _fields(original, shown, given)
    if isinstance(original, list) and isinstance(shown, list) and isinstance(given, list):
        known = list(zip(original, shown, strict=False))
        return [_value(*known[index], item) if index < len(known) else item for index, item in enumerate(given)]
    return given


def _same(one: Any, other: Any) -> bool:
    # Not by ==, for which 1, 1.0 and True are equal.
    return json.dumps(one) == json.dumps(other)
