"""Lines ↔ records: raw lines, JSON lines and whole records in OpenCDC's JSON form."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from conduit_connectors.lines import Lines
from conduit_py.sdk import (
    Data,
    DuplicateKeys,
    Payload,
    Reading,
    Record,
    RecordRefused,
    Structured,
    decode_json,
    encode_json,
    may_repeat_keys,
)

LineFormat: TypeAlias = Literal["lines", "json", "csv", "opencdc"]
"""What a line of a file is; CSV is in `file/csv_format.py`."""

_decode_object = msgspec.json.Decoder(dict).decode


def parse_raw(lines: Lines, positions: Sequence[bytes]) -> Reading:
    r"""Each line is a record, empty ones too: `payload.after` is its bytes without "\n" or "\r\n"."""
    if lines.long:
        return parse_each(lines, positions, _raw_record, skip_blank=False)
    return Reading([_raw_record(text, position) for text, position in zip(lines.texts, positions, strict=True)], {})


def parse_json(lines: Lines, positions: Sequence[bytes], duplicate_keys: DuplicateKeys = "refuse") -> Reading:
    """Each line that is not blank is one JSON object, the structured `payload.after`."""
    one = partial(_json_record, duplicate_keys=duplicate_keys)
    if lines.long:
        return parse_each(lines, positions, one)
    try:
        values = list(map(_decode_object, lines.texts))
        if duplicate_keys == "refuse" and _may_repeat_keys(lines.texts, values):
            return parse_each(lines, positions, one)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # A blank or bad line is rare, so a second pass over all lines finds it.
        return parse_each(lines, positions, one)
    pairs = zip(positions, values, strict=True)
    return Reading([Record(position=position, payload=Payload(after=value)) for position, value in pairs], {})


def parse_opencdc(lines: Lines, positions: Sequence[bytes], duplicate_keys: DuplicateKeys = "refuse") -> Reading:
    """Each line that is not blank is a whole record, whose position is replaced by ours."""
    return parse_each(lines, positions, partial(_whole_record, duplicate_keys=duplicate_keys))


def parse_each(
    lines: Lines, positions: Sequence[bytes], one: Callable[[bytes, bytes], Record], *, skip_blank: bool = True
) -> Reading:
    """Turn lines into records one by one. A line that is not one is refused, with its bytes."""
    records: list[Record] = []
    refused: dict[int, str] = {}
    for text, end, position in zip(lines.texts, lines.ends, positions, strict=True):
        if end in lines.long:
            kept = without_line_end(text)
            refused[len(records)] = too_long(lines.long[end], len(kept))
            records.append(Record.of(kept, position=position))
        elif not skip_blank or text.strip():
            try:
                records.append(one(text, position))
            except RecordRefused as error:
                refused[len(records)] = error.message
                records.append(_raw_record(text, position))
    return Reading(records, refused)


def too_long(size: int, kept: int) -> str:
    """Return why a line beyond the size limit is refused."""
    return f"the line has {size} bytes, more than line_size_max; only its first {kept} bytes are kept here"


def without_line_end(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _raw_record(text: bytes, position: bytes) -> Record:
    return Record(position=position, payload=Payload(after=without_line_end(text)))


def _may_repeat_keys(texts: Sequence[bytes], values: list[dict[str, object]]) -> bool:
    """As `may_repeat_keys`. Its first test is repeated here for all lines at once: most files pass it."""
    text = b"".join(texts)
    return text.count(b":") != sum(map(len, values)) and may_repeat_keys(text, values)


def _json_record(text: bytes, position: bytes, *, duplicate_keys: DuplicateKeys) -> Record:
    value: Structured = decode_json(text, duplicate_keys=duplicate_keys)
    if not isinstance(value, dict):
        raise RecordRefused(f"the line must be a JSON object, not {_JSON_NAMES[type(value)]}")
    return Record(position=position, payload=Payload(after=value))


def _whole_record(text: bytes, position: bytes, *, duplicate_keys: DuplicateKeys) -> Record:
    record = Record.from_map(decode_json(text, duplicate_keys=duplicate_keys))
    record.position = position
    return record


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


class Encoded(NamedTuple):
    """Whole lines, and why the records that are not among them were refused, by index."""

    text: bytes
    refused: dict[int, str]


Encode = Callable[[Sequence[Record]], Encoded]

_encode_lines = msgspec.json.Encoder().encode_lines


def encode_json_lines(records: Sequence[Record]) -> Encoded:
    """One line each: `payload.after` as a JSON object. Raw and absent payloads, NaN and infinity are refused."""
    values = [record.payload.after for record in records]
    if set(map(type, values)) == {dict}:
        try:
            text = _encode_lines(values)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return encode_each(records, _json_line)
        if b"null" not in text or _nulls_are_null(text, values):
            return Encoded(text, {})
    return encode_each(records, _json_line)


def encode_opencdc_lines(records: Sequence[Record]) -> Encoded:
    """One line each: the whole record in OpenCDC's JSON form."""
    return encode_each(records, _whole_line)


def encode_raw_lines(records: Sequence[Record]) -> Encoded:
    """One line each: the bytes of `payload.after`. Structured and absent payloads are refused, as are line feeds."""
    return encode_each(records, _raw_line)


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
