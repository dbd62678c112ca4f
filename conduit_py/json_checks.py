"""What is refused in the JSON of a record: nesting too deep, and repeated keys, of which decoders keep only the last.

`may_repeat_keys` is the quick test, on one text or on many lines at once; `find_repeated_key` looks closely.
"""

import json
from typing import Any, Final, Literal, TypeAlias

import msgspec

JSON_DEPTH_MAX: Final = 200
"""Encoders need some frames of Python for each level. This leaves most of its stack of 1000 to their callers."""


def is_too_deep(text: bytes, value: Any) -> bool:
    """Whether `value`, decoded from the JSON `text`, is nested more than JSON_DEPTH_MAX deep. Quick for most texts."""
    # Each level takes two brackets, so few texts need a closer look.
    if len(text) <= 2 * JSON_DEPTH_MAX or text.count(b"[") + text.count(b"{") <= JSON_DEPTH_MAX:
        return False
    return is_nested_deeply(value)


def is_nested_deeply(value: Any) -> bool:
    """Return True if there are more than JSON_DEPTH_MAX levels of dicts, lists and tuples."""
    level = [value]
    # Level by level, for a recursive function would itself fail on what is searched here.
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [each for each in level if isinstance(each, dict | list | tuple)]
        if not level:
            return False
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return True


DuplicateKeys: TypeAlias = Literal["refuse", "last"]
"""What happens to a record whose JSON has a key twice in one object: it is refused, or keeps the last value."""

_encode = msgspec.json.Encoder().encode


def may_repeat_keys(text: bytes, value: Any) -> bool:
    """False if no object in `text` repeats a key. `value` is what was decoded from it, a list if it is many lines.

    Lines with as many colons as their objects have members need no test. True is nearly always a repeated key; only
    `find_repeated_key` tells for sure.
    """
    colons = text.count(b":")
    # Each member has a colon in the text. With as many members as colons, decoding lost none.
    if type(value) is dict and len(value) == colons:
        return False
    # The others are in texts, or belong to objects inside. Encoded again, all come back if nothing was lost.
    if _encode(value).count(b":") != colons:
        return True
    # But an escaped colon is one more in the encoded value, where it could replace a lost one.
    return b"\\" in text and b"\\u003" in text


def find_repeated_key(text: bytes) -> str | None:
    """Return the first key that an object in this JSON document repeats. Takes ten times as long as decoding."""
    try:
        json.loads(text.decode(), object_pairs_hook=_refuse_repeated)
    except _RepeatedKey as found:
        return found.key
    return None


class _RepeatedKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _RepeatedKey(key)
        seen.add(key)
