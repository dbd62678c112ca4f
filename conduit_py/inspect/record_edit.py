"""Record edits: applies an edited view of a record to the record itself."""

import json
from typing import Any

from conduit_py.errors import RecordRefused
from conduit_py.record import Data, Payload, Record, Structured


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
