"""How field paths are written: `.Payload.After.name`, `.Metadata["odd key"]`, `payload.after.name`, `name`."""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, TypeAlias

from conduit_py.sdk.plugin import did_you_mean, option_error

Names: TypeAlias = tuple[str, ...]


class FieldPathInvalid(ValueError):
    """A text, or a list of names, is not a path to a field of a record."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion


class RecordPart(Enum):
    """The part of a record in which a path begins. The value is its spelling."""

    RECORD = "."
    POSITION = ".Position"
    OPERATION = ".Operation"
    METADATA = ".Metadata"
    KEY = ".Key"
    PAYLOAD = ".Payload"
    BEFORE = ".Payload.Before"
    AFTER = ".Payload.After"


def parse_path(text: str) -> tuple[RecordPart, Names]:
    """Return the part and the names below it. Parts may be lower case, and the first dot may be left out.

    A path that begins with neither a dot nor a part is below `.Payload.After`. Raises FieldPathInvalid if the text
    is not a path.
    """
    text = text.strip()
    if text == RecordPart.RECORD.value:
        return RecordPart.RECORD, ()
    if not text:
        raise FieldPathInvalid("it is empty")
    if text.startswith("."):
        return locate(list(_steps(text)))
    names = list(_steps(f".{text}"))
    return locate(names) if names[0] in _PARTS else (RecordPart.AFTER, tuple(names))


def locate(names: Sequence[str]) -> tuple[RecordPart, Names]:
    """Return the part of a record that a list of names begins with, and the names below it."""
    if not names:
        return RecordPart.RECORD, ()
    head, *rest = names
    part = _PARTS.get(head)
    if part is None:
        raise FieldPathInvalid(f"a record has no .{head}", did_you_mean(head, _NAMES) or f"it has {_KNOWN}")
    if part is RecordPart.PAYLOAD and rest:
        return _locate_in_payload(rest)
    if rest and part in (RecordPart.POSITION, RecordPart.OPERATION):
        raise FieldPathInvalid(f"{part.value} has no fields")
    if part is RecordPart.METADATA and len(rest) > 1:
        key = format_path(part, (".".join(rest),))
        raise FieldPathInvalid("metadata is flat: a key with dots in it goes in brackets", f"write {key}")
    return part, tuple(rest)


def format_path(part: RecordPart, names: Names = ()) -> str:
    """Return the canonical text of a path, from which `parse_path` and Conduit read the same path."""
    return part.value + "".join(f".{name}" if _NAME.fullmatch(name) else f"[{_quote(name)}]" for name in names)


def field_path_error(reason: str) -> ValueError:
    """Return the error for an option that is not a field path of the right kind."""
    return option_error(f"must be a field path such as {EXAMPLE} ({reason})")


def split_outside_quotes(text: str, separator: str) -> list[str]:
    """Split a text at separators that are outside of quotes, and strip the parts."""
    parts = [""]
    for piece in _QUOTED_OR_NOT.findall(text):
        if piece == separator:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def unquote(text: str) -> str:
    """Return the name between quotes, with its backslash escapes replaced."""
    return _ESCAPED.sub(r"\1", text[1:-1])


EXAMPLE: Final = ".Payload.After.name"
QUOTED: Final = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_NAME = re.compile(r"[^\W\d]\w*")
_QUOTED_OR_NOT = re.compile(rf"{QUOTED}|.", re.DOTALL)
_STEP = re.compile(rf"\.(?P<name>{_NAME.pattern})|\[\s*(?P<quoted>{QUOTED})\s*\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NAMES: Final = ["Key", "Metadata", "Operation", "Payload", "Position"]
_PARTS = {written: RecordPart(f".{name}") for name in _NAMES for written in (name, name.lower())}
_SIDES = {
    "Before": RecordPart.BEFORE,
    "before": RecordPart.BEFORE,
    "After": RecordPart.AFTER,
    "after": RecordPart.AFTER,
}
_KNOWN = ".Key, .Metadata, .Operation, .Payload.After, .Payload.Before, .Position"


def _steps(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise FieldPathInvalid(f'cannot read {text[at:]!r}; names other than letters, digits and _ go in ["…"]')
        yield step["name"] if step["name"] is not None else unquote(step["quoted"])
        at = step.end()


def _locate_in_payload(names: Sequence[str]) -> tuple[RecordPart, Names]:
    side = _SIDES.get(names[0])
    if side is None:
        hint = f"write {format_path(RecordPart.AFTER, tuple(names))}"
        raise FieldPathInvalid("a payload has .Before and .After", hint)
    return side, tuple(names[1:])


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
