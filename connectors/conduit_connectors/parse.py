"""Lines → records: raw lines, JSON lines and whole records in OpenCDC's JSON form, for every source of lines."""

from collections.abc import Callable, Sequence

import msgspec

from conduit_connectors.lines import Lines
from conduit_py.sdk import Payload, Reading, Record, RecordRefused, Structured, decode_json

_decode_object = msgspec.json.Decoder(dict).decode


def parse_raw(lines: Lines, positions: Sequence[bytes]) -> Reading:
    r"""Each line is a record, empty ones too: `payload.after` is its bytes without "\n" or "\r\n"."""
    if lines.long:
        return parse_each(lines, positions, _raw_record, skip_blank=False)
    return Reading([_raw_record(text, position) for text, position in zip(lines.texts, positions, strict=True)], {})


def parse_json(lines: Lines, positions: Sequence[bytes]) -> Reading:
    """Each line that is not blank is one JSON object, the structured `payload.after`."""
    if lines.long:
        return parse_each(lines, positions, _json_record)
    try:
        values = list(map(_decode_object, lines.texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # A blank line or a bad one: rare, so finding out which may take a second look at all of them.
        return parse_each(lines, positions, _json_record)
    pairs = zip(positions, values, strict=True)
    return Reading([Record(position=position, payload=Payload(after=value)) for position, value in pairs], {})


def parse_opencdc(lines: Lines, positions: Sequence[bytes]) -> Reading:
    """Each line that is not blank is a whole record, whose position is replaced by ours."""
    return parse_each(lines, positions, _whole_record)


def parse_each(
    lines: Lines, positions: Sequence[bytes], one: Callable[[bytes, bytes], Record], *, skip_blank: bool = True
) -> Reading:
    """Turn lines into records one by one. A line that cannot be one is refused, its bytes kept as they are."""
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
    """Why a line beyond the size limit is refused."""
    return f"the line has {size} bytes, more than line_size_max; only its first {kept} bytes are kept here"


def without_line_end(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _raw_record(text: bytes, position: bytes) -> Record:
    return Record(position=position, payload=Payload(after=without_line_end(text)))


def _json_record(text: bytes, position: bytes) -> Record:
    value: Structured = decode_json(text)
    if not isinstance(value, dict):
        raise RecordRefused(f"the line must be a JSON object, not {_JSON_NAMES[type(value)]}")
    return Record(position=position, payload=Payload(after=value))


def _whole_record(text: bytes, position: bytes) -> Record:
    record = Record.from_json(text)
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
