"""What a change says of its row: its whole row, the fields that it left alone, or that all rows are gone."""

from collections.abc import Container
from typing import Any

import msgspec

from conduit_py.sdk import Record, RecordRefused, metadata

_UNCHANGED = (metadata.UNCHANGED_FIELDS, "postgres.unchanged")
_TRUNCATE = (metadata.TRUNCATE, "postgres.truncate")
"""The names that all sources share, and those that the PostgreSQL source had before there were any."""


def says_truncate(record: Record) -> bool:
    """True for a delete of all rows of the record's collection."""
    return any(record.metadata.get(name) == "true" for name in _TRUNCATE)


def whole_row(record: Record) -> Any:
    """Return the fields of the payload, and those that only the key has."""
    key, after = record.key if isinstance(record.key, dict) else {}, record.payload.after
    return {**key, **after} if isinstance(after, dict) else after


def unchanged_fields(record: Record, fields: Container[str]) -> tuple[str, ...]:
    """Return the fields that the record left alone. One of `fields` has a value, by a processor, and is none of them.

    Raises RecordRefused if the metadata is no list of names.
    """
    for name in _UNCHANGED:
        if (text := record.metadata.get(name)) is not None:
            try:
                names = _NAMES_DECODER.decode(text)
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise RecordRefused(f"has metadata {name} that is no JSON list of fields: {error}") from error
            return tuple(each for each in names if each not in fields)
    return ()


_NAMES_DECODER = msgspec.json.Decoder(list[str])
