"""How deep the JSON of a record may be nested. What is deeper can be decoded, but perhaps not encoded again."""

from typing import Any, Final

JSON_DEPTH_MAX: Final = 200
"""Encoders need some frames of Python for each level. This leaves most of its stack of 1000 to their callers."""


def is_too_deep(text: bytes, value: Any) -> bool:
    """Whether `value`, decoded from the JSON `text`, is nested more than JSON_DEPTH_MAX deep. Quick for most texts."""
    # Each level takes two brackets, so few texts need a closer look.
    if len(text) <= 2 * JSON_DEPTH_MAX or text.count(b"[") + text.count(b"{") <= JSON_DEPTH_MAX:
        return False
    level = [value]
    # Level by level, for a recursive function would itself fail on what is searched here.
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [each for each in level if type(each) is dict or type(each) is list]
        if not level:
            return False
        level = [item for each in level for item in (each.values() if type(each) is dict else each)]
    return True
