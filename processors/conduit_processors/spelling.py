"""How references to fields are written: `.Payload.After.name`, `.Metadata["odd key"]`, `payload.after.name`, `name`."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, TypeAlias

from conduit_processors.mistake import mistake

Path: TypeAlias = tuple[str, ...]


class Root(Enum):
    """The part of a record in which a reference begins; the value is how it is written."""

    RECORD = "."
    POSITION = ".Position"
    OPERATION = ".Operation"
    METADATA = ".Metadata"
    KEY = ".Key"
    PAYLOAD = ".Payload"
    BEFORE = ".Payload.Before"
    AFTER = ".Payload.After"


def parse(text: str) -> tuple[Root, Path]:
    """The root and the names below it. Parts of a record may be lower case; a leading dot may be left out.

    A path that begins with neither a dot nor a part of a record is one of `.Payload.After`. What is
    not a reference raises ValueError saying why.
    """
    text = text.strip()
    if text == Root.RECORD.value:
        return Root.RECORD, ()
    if not text:
        raise malformed("it is empty")
    bare = not text.startswith(".")
    head, *rest = _steps(f".{text}" if bare else text)
    part = _PARTS.get(head)
    if part is None:
        if bare:
            return Root.AFTER, (head, *rest)
        raise malformed(f"{_quote(head)} is no part of a record; parts are {_KNOWN}")
    if part is Root.PAYLOAD and rest:
        return _side(rest)
    if rest and part in (Root.POSITION, Root.OPERATION):
        raise malformed(f"{part.value} has no fields")
    if part is Root.METADATA and len(rest) > 1:
        raise malformed(f"metadata is flat, write {spell(part, ('.'.join(rest),))}")
    return part, tuple(rest)


def spell(root: Root, path: Path = ()) -> str:
    """The one way of writing a reference that `parse` turns into the same root and path, and Conduit too."""
    return root.value + "".join(f".{name}" if _NAME.fullmatch(name) else f"[{_quote(name)}]" for name in path)


def malformed(reason: str) -> ValueError:
    """The error for what should have been a reference of a certain kind."""
    return mistake(f"must be a field reference such as {EXAMPLE} ({reason})")


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
    for part in (Root.POSITION, Root.OPERATION, Root.METADATA, Root.KEY, Root.PAYLOAD)
    for spelled in (part.value[1:], part.value[1:].lower())
}
_SIDES = {"Before": Root.BEFORE, "before": Root.BEFORE, "After": Root.AFTER, "after": Root.AFTER}
_KNOWN = ".Key, .Metadata, .Operation, .Payload.After, .Payload.Before, .Position"


def _steps(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise malformed(f'cannot read {text[at:]!r}; names other than letters, digits and _ go in ["…"]')
        yield step["name"] if step["name"] is not None else _ESCAPED.sub(r"\1", step["quoted"][1:-1])
        at = step.end()


def _side(names: list[str]) -> tuple[Root, Path]:
    side = _SIDES.get(names[0])
    if side is None:
        raise malformed(f"a payload has .Before and .After, write {spell(Root.AFTER, tuple(names))}")
    return side, tuple(names[1:])


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
