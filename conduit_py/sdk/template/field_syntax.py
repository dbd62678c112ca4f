"""How references to fields are written: `.Payload.After.name`, `.Metadata["odd key"]`, `payload.after.name`, `name`."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, TypeAlias

from conduit_py.sdk.text_option import option_error

Path: TypeAlias = tuple[str, ...]


class RecordPart(Enum):
    """The part of a record in which a reference begins; the value is how it is written."""

    RECORD = "."
    POSITION = ".Position"
    OPERATION = ".Operation"
    METADATA = ".Metadata"
    KEY = ".Key"
    PAYLOAD = ".Payload"
    BEFORE = ".Payload.Before"
    AFTER = ".Payload.After"


def parse_path(text: str) -> tuple[RecordPart, Path]:
    """The root and the names below it. Parts of a record may be lower case; a leading dot may be left out.

    A path that begins with neither a dot nor a part of a record is one of `.Payload.After`. What is
    not a reference raises ValueError saying why.
    """
    text = text.strip()
    if text == RecordPart.RECORD.value:
        return RecordPart.RECORD, ()
    if not text:
        raise field_path_error("it is empty")
    bare = not text.startswith(".")
    head, *rest = _steps(f".{text}" if bare else text)
    part = _PARTS.get(head)
    if part is None:
        if bare:
            return RecordPart.AFTER, (head, *rest)
        raise field_path_error(f"{_quote(head)} is no part of a record; parts are {_KNOWN}")
    if part is RecordPart.PAYLOAD and rest:
        return _side(rest)
    if rest and part in (RecordPart.POSITION, RecordPart.OPERATION):
        raise field_path_error(f"{part.value} has no fields")
    if part is RecordPart.METADATA and len(rest) > 1:
        raise field_path_error(f"metadata is flat, write {format_path(part, ('.'.join(rest),))}")
    return part, tuple(rest)


def format_path(root: RecordPart, path: Path = ()) -> str:
    """The one way of writing a reference that `parse_path` turns into the same root and path, and Conduit too."""
    return root.value + "".join(f".{name}" if _NAME.fullmatch(name) else f"[{_quote(name)}]" for name in path)


def field_path_error(reason: str) -> ValueError:
    """The error for what should have been a reference of a certain kind."""
    return option_error(f"must be a field reference such as {EXAMPLE} ({reason})")


def split_outside_quotes(text: str, separator: str) -> list[str]:
    """The parts of a list written as text, without the blanks around them; quoted separators are not separators."""
    parts = [""]
    for piece in _QUOTED_OR_NOT.findall(text):
        if piece == separator:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


EXAMPLE: Final = ".Payload.After.name"
_NAME = re.compile(r"[^\W\d]\w*")
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_QUOTED_OR_NOT = re.compile(rf"{_QUOTED}|.", re.DOTALL)
_STEP = re.compile(rf"\.(?P<name>{_NAME.pattern})|\[\s*(?P<quoted>{_QUOTED})\s*\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PARTS = {
    spelled: part
    for part in (RecordPart.POSITION, RecordPart.OPERATION, RecordPart.METADATA, RecordPart.KEY, RecordPart.PAYLOAD)
    for spelled in (part.value[1:], part.value[1:].lower())
}
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
            raise field_path_error(f'cannot read {text[at:]!r}; names other than letters, digits and _ go in ["…"]')
        yield step["name"] if step["name"] is not None else _ESCAPED.sub(r"\1", step["quoted"][1:-1])
        at = step.end()


def _side(names: list[str]) -> tuple[RecordPart, Path]:
    side = _SIDES.get(names[0])
    if side is None:
        raise field_path_error(f"a payload has .Before and .After, write {format_path(RecordPart.AFTER, tuple(names))}")
    return side, tuple(names[1:])


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
