"""Records → lines: what goes into a file or onto standard output, and which records cannot."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from conduit_py.sdk import Data, Record, RecordRefused, encode_json


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
    """Encode records one by one, so that those that cannot be encoded do not keep the others back."""
    lines: list[bytes] = []
    refused: dict[int, str] = {}
    for index, record in enumerate(records):
        try:
            lines.append(one(record))
        except RecordRefused as error:
            refused[index] = error.message
    return Encoded(b"".join(lines), refused)


def structured(data: Data, format: str) -> dict[str, object]:
    """The fields of `payload.after`; what has none is refused with a hint."""
    if isinstance(data, dict):
        return data
    if data is None:
        hint = 'write whole records with format="opencdc", or filter records without payload.after'
        raise RecordRefused(f"payload.after is absent, but format {format!r} writes it ({hint})")
    hint = 'decode it first, for example with the processor "json.decode", or use format="lines"'
    raise RecordRefused(f"payload.after is raw bytes, but format {format!r} writes structured data ({hint})")


def _nulls_are_null(text: bytes, values: Sequence[Data]) -> bool:
    """Whether no null in the lines was NaN or infinity: the encoder writes those as null."""
    try:
        for line, value in zip(text.split(b"\n"), values, strict=False):
            if b"null" in line:
                encode_json(value)
    except RecordRefused:
        return False
    return True


def _json_line(record: Record) -> bytes:
    return encode_json(structured(record.payload.after, "json")) + b"\n"


def _whole_line(record: Record) -> bytes:
    return record.to_json() + b"\n"


def _raw_line(record: Record) -> bytes:
    data = record.payload.after
    if not isinstance(data, bytes):
        what = "absent" if data is None else "structured"
        hint = 'encode it first, for example with the processor "json.encode", or use another format'
        raise RecordRefused(f'payload.after is {what}, but format "lines" writes raw bytes ({hint})')
    if b"\n" in data:
        raise RecordRefused('payload.after has a line feed in it, so format "lines" would write it as several lines')
    return data + b"\n"
