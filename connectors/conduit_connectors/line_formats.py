"""Lines ↔ records: raw lines, JSON lines (parsed in `json_lines`) and whole records in OpenCDC's JSON form."""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from conduit_connectors.lines import Lines
from conduit_py.sdk import (
    Batch,
    Columns,
    Data,
    DuplicateKeys,
    Payloads,
    Reading,
    Record,
    RecordRefused,
    decode_json,
    encode_json,
)

LineFormat: TypeAlias = Literal["lines", "json", "csv", "opencdc"]
"""What a line of a file is; CSV is in `file/csv_format.py`."""
FORM_OF_LINES: dict[LineFormat, Any] = {"lines": bytes, "json": dict, "csv": dict, "opencdc": Any}
"""The type of `payload.after` in the records of each format, for `gives` and `takes`."""


def parse_raw(lines: Lines, positions: Sequence[bytes]) -> Reading:
    r"""Each line is a record, empty ones too: `payload.after` is its bytes without "\n" or "\r\n"."""
    if lines.long:
        parsed = parse_each(lines, positions, without_line_end, skip_blank=False)
        return Reading(Payloads(parsed.values, parsed.positions, bytes), parsed.refused)
    return Reading(Payloads(list(map(without_line_end, lines.texts)), positions, bytes), {})


def parse_opencdc(lines: Lines, positions: Sequence[bytes], duplicate_keys: DuplicateKeys = "refuse") -> Reading:
    """Each line that is not blank is a whole record, whose position is replaced by ours."""
    parsed = parse_each(
        lines, positions, lambda text: Record.from_map(decode_json(text, duplicate_keys=duplicate_keys))
    )
    records = [value if isinstance(value, Record) else Record.of(value) for value in parsed.values]
    for record, position in zip(records, parsed.positions, strict=True):
        record.position = position
    return Reading(records, parsed.refused)


class Values(NamedTuple):
    """What lines were parsed to, with their positions. A refused line is its bytes."""

    values: list[Any]
    positions: list[bytes]
    refused: dict[int, str]


def parse_each(
    lines: Lines, positions: Sequence[bytes], one: Callable[[bytes], Any], *, skip_blank: bool = True
) -> Values:
    """Parse lines one by one. A line that cannot be parsed is refused, with its bytes."""
    parsed = Values([], [], {})
    for text, end, position in zip(lines.texts, lines.ends, positions, strict=True):
        if skip_blank and end not in lines.long and not text.strip():
            continue
        try:
            if end in lines.long:
                raise RecordRefused(too_long(lines.long[end], len(without_line_end(text))))
            value = one(text)
        except RecordRefused as error:
            parsed.refused[len(parsed.values)] = error.message
            value = without_line_end(text)
        parsed.values.append(value)
        parsed.positions.append(position)
    return parsed


def too_long(size: int, kept: int) -> str:
    """Return why a line beyond the size limit is refused."""
    return f"the line has {size} bytes, more than line_size_max; only its first {kept} bytes are kept here"


def without_line_end(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


class Encoded(NamedTuple):
    """Whole lines, and why the records that are not among them were refused, by index."""

    text: bytes
    refused: dict[int, str]


Encode = Callable[[Batch], Encoded]

_encode_lines = msgspec.json.Encoder().encode_lines


def encode_json_lines(batch: Batch) -> Encoded:
    """One line each: `payload.after` as a JSON object. Raw and absent payloads, NaN and infinity are refused."""
    values = batch.payloads
    kinds = {batch.kind} if batch.kind is not None else set(map(type, values))
    if bytes not in kinds and type(None) not in kinds:
        try:
            text = _encode_lines(values)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return encode_each(batch.records, _json_line)
        if not _has_null(text) or _nulls_are_null(text, values):
            return Encoded(text, {})
    return encode_each(batch.records, _json_line)


def encode_opencdc_lines(batch: Batch) -> Encoded:
    """One line each: the whole record in OpenCDC's JSON form."""
    absent = _count_absent(batch)
    records = batch.records
    try:
        text = _encode_lines(records)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return encode_each(records, _whole_line)
    # Invariant 12: the encoder writes null for NaN and infinity. There is none if every null is an absent part.
    return Encoded(text, {}) if text.count(b"null") == absent else encode_each(records, _whole_line)


def _count_absent(batch: Batch) -> int:
    """Return how many keys and payloads, before and after, are absent. A batch of payloads makes no records for it."""
    if batch.holds_records:
        parts = [part for each in batch for part in (each.key, each.payload.before, each.payload.after)]
        return parts.count(None)
    columns = batch.columns or Columns()
    # By type: the `__eq__` of a user's own type could say that it equals None.
    kinds = [
        None if part is None else list(map(type, part)) for part in (columns.keys, columns.befores, batch.payloads)
    ]
    return sum(len(batch) if each is None else each.count(type(None)) for each in kinds)


def encode_raw_lines(batch: Batch) -> Encoded:
    """One line each: the bytes of `payload.after`. Structured and absent payloads are refused, as are line feeds."""
    return encode_each(batch.records, _raw_line)


def encode_each(records: Sequence[Record], one: Callable[[Record], bytes]) -> Encoded:
    """Encode records one by one, so that those that cannot be encoded do not stop the others."""
    lines: list[bytes] = []
    refused: dict[int, str] = {}
    for index, record in enumerate(records):
        try:
            lines.append(one(record))
        except RecordRefused as error:
            refused[index] = error.message
    return Encoded(b"".join(lines), refused)


def structured_fields(data: Data, format: str) -> dict[str, object]:
    """Return the fields of `payload.after`. Raises RecordRefused, with a hint, if there are none."""
    if isinstance(data, dict):
        return data
    if data is None:
        hint = 'write whole records with format="opencdc", or filter records without payload.after'
        raise RecordRefused(f"payload.after is absent, but format {format!r} writes it ({hint})")
    hint = 'decode it first, for example with the processor "json.decode", or use format="lines"'
    raise RecordRefused(f"payload.after is raw bytes, but format {format!r} writes structured data ({hint})")


def _search_backwards(text: bytes) -> bool:
    # From the end, which is twice as fast: no other word of JSON ends like this one.
    return text.rfind(b"null") >= 0


def _null_search() -> Callable[[bytes], bool]:
    """Return what tells whether JSON lines have a null. The search of glibc takes a sixth of the time of Python's."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", ()):
        return _search_backwards
    # PyDLL keeps the interpreter's lock: to get it back would take longer than the search.
    strstr = ctypes.PyDLL(None).strstr
    strstr.argtypes, strstr.restype = (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_void_p

    def search(text: bytes) -> bool:
        # It ends at a zero byte. An encoder writes none, but a value that is JSON already is copied as it is.
        return strstr(text, b"null") is not None or (b"\0" in text and _search_backwards(text))

    return search


_has_null = _null_search()


def _nulls_are_null(text: bytes, values: Sequence[Data]) -> bool:
    """True if no null in the lines was NaN or infinity, which the encoder writes as null."""
    # Invariant 12: a NaN that becomes null is a changed value. Only a line with a null can hide one.
    try:
        for line, value in zip(text.split(b"\n"), values, strict=False):
            if b"null" in line:
                encode_json(value)
    except RecordRefused:
        return False
    return True


def _json_line(record: Record) -> bytes:
    return encode_json(structured_fields(record.payload.after, "json")) + b"\n"


def _whole_line(record: Record) -> bytes:
    return record.to_json() + b"\n"


def _raw_line(record: Record) -> bytes:
    data = record.payload.after
    if not isinstance(data, bytes):
        what = "absent" if data is None else "structured"
        hint = 'encode it first, for example with the processor "json.encode", or use another format'
        raise RecordRefused(f'payload.after is {what}, but format "lines" writes raw bytes ({hint})')
    # Invariant 12: readers would see several records.
    if b"\n" in data:
        raise RecordRefused('payload.after has a line feed in it, so format "lines" would write it as several lines')
    return data + b"\n"
