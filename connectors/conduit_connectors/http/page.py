"""Pages: the records in an answer, as JSON or JSON lines. Answers are hostile: each error says what was wrong."""

from collections.abc import Iterator
from email.message import Message
from typing import Any, Final

import httpx2
import msgspec

from conduit_connectors.http.client import HttpReply, place
from conduit_connectors.http.source_options import SourceOptions
from conduit_py.sdk import FatalError, Record, RecordRefused, TransientError, UnreadableRecord, decode_json

_JSON_LINES: Final = frozenset(
    {
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/json-lines",
    }
)

_MISSING: Final = object()


def read_page(reply: HttpReply, options: SourceOptions) -> tuple[list[Record | UnreadableRecord], Any]:
    """Return the records of a page, without positions, and the body for what else is in it."""
    if reply.status == 204:
        return [], None
    kind, text = _decode(reply)
    if options.format == "jsonl" or (options.format == "auto" and kind in _JSON_LINES):
        return list(_lines(text, options)), None
    if not text.strip():
        if options.records_optional:
            return [], None
        # As an empty page it would end the pass, and `since` would move past pages that nobody has read.
        raise TransientError(
            f"{_place(reply)} answers {reply.status} with an empty body, which is no JSON",
            suggestion="if the API answers so when there are no records, set records_optional",
        )
    try:
        body = decode_json(text, duplicate_keys=options.duplicate_keys)
    except RecordRefused as error:
        # It may be the page of a proxy, or half of an answer: a later one may be right.
        raise TransientError(
            f"{_place(reply)} answers with something that cannot be used: {error.message}; it begins {reply.excerpt!r}",
            suggestion="check the URL, and `format`",
        ) from error
    found = options.records.find(body, _MISSING)
    if found is _MISSING and not options.records_optional:
        names = f"an object with {', '.join(sorted(map(repr, body))[:20])}" if isinstance(body, dict) else _name(body)
        raise FatalError(
            f"{_place(reply)} has no records at {str(options.records)!r}: the answer is {names}"[:500],
            suggestion="correct `records`; if the API leaves an empty list out, set records_optional",
        )
    if found is None or found is _MISSING:
        return [], body
    items = found if isinstance(found, list) else [found]
    return [_record(item, options) for item in items], body


def _name(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


def _decode(reply: HttpReply) -> tuple[str, bytes]:
    """Return the content type, and the body in UTF-8."""
    header = Message()
    header["content-type"] = reply.headers.get("content-type", "application/json")
    charset = str(header.get_param("charset", "utf-8"))
    if charset.lower().replace("_", "-") in ("utf-8", "utf8", "us-ascii", "ascii"):
        return header.get_content_type(), reply.body.removeprefix(b"\xef\xbb\xbf")
    try:
        return header.get_content_type(), reply.body.decode(charset).encode()
    except (LookupError, UnicodeError, ValueError) as error:
        raise TransientError(
            f"{_place(reply)} says that its answer has the charset {charset[:40]!r}, and it cannot be read so: {error}"[
                :400
            ]
        ) from error


def _lines(text: bytes, options: SourceOptions) -> Iterator[Record | UnreadableRecord]:
    for line in text.split(b"\n"):
        if not line.strip():
            continue
        try:
            yield _record(decode_json(line, duplicate_keys=options.duplicate_keys), options)
        except RecordRefused as error:
            yield UnreadableRecord(Record.of(line), error.message)


def _record(item: Any, options: SourceOptions) -> Record | UnreadableRecord:
    if not isinstance(item, dict):
        return UnreadableRecord(Record.of(msgspec.json.encode(item)), "is not an object")
    name = options.key_field
    return Record.of(item, key={name: item[name]} if name is not None and item.get(name) is not None else None)


def _place(reply: HttpReply) -> str:
    return place(httpx2.URL(reply.url))
