"""`outbox.route` makes messages of the rows that an application inserts into its outbox table."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, Unpack

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from conduit_py.sdk import (
    Operation,
    Options,
    Payload,
    Processor,
    Record,
    RecordRefused,
    Structured,
    decode_json,
    encode_json,
)
from conduit_py.sdk import metadata as names
from conduit_py.sdk.template import Template, kind_of, option_error, split_outside_quotes, text_of

_logger = logging.getLogger(__name__)


def _headers(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = [split_outside_quotes(pair, ":") for pair in split_outside_quotes(value, ",") if value.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise option_error("must be pairs such as id:kafka.header.id, with commas between them")
    return dict(pairs)


class RouteOptions(Options):
    """Options of outbox.route."""

    topic: Annotated[
        Template, BeforeValidator(Template.of), PlainSerializer(str), WithJsonSchema({"type": "string"})
    ] = Field(
        default=Template("outbox.event.{{ .Payload.After.aggregatetype }}"),
        description="a template over the row: the topic, which becomes opencdc.collection",
    )
    key: str | None = Field(
        default="aggregateid", min_length=1, description="the column with the key of the message; None: no key"
    )
    payload: str = Field(default="payload", min_length=1, description="the column with the content of the message")
    expand: bool = Field(
        default=False, description="make structured data of the content, which must be a JSON object; else raw bytes"
    )
    headers: Annotated[dict[str, str], BeforeValidator(_headers)] = Field(
        default={"id": "kafka.header.id", "type": "kafka.header.eventType"},
        description="column to metadata, as a dict or as text: id:kafka.header.id,type:kafka.header.eventType",
    )
    tombstones: bool = Field(
        default=False, description="a row without content is a delete of its key; else it is refused"
    )
    on_update: Literal["refuse", "warn"] = Field(
        default="refuse", description="an update of a row: refuse it, or log that there is one and drop it"
    )


class RouteArguments(TypedDict, total=False):
    """RouteOptions as a caller writes them, for editors and type checkers."""

    topic: str | Template
    key: str | None
    payload: str
    expand: bool
    headers: Mapping[str, str] | str
    tombstones: bool
    on_update: Literal["refuse", "warn"]


class Route(Processor[RouteOptions]):
    """Turns a row that was inserted into an outbox table into the message that it stands for.

    The topic is in `opencdc.collection`, where destinations with several topics or tables look for it. Deletes of
    rows are dropped: an application may remove its rows as soon as it likes. The position and all other metadata
    stay as they are. Defaults are the columns of Debezium's outbox event router.
    """

    blocking = False
    takes = Structured | None
    _warned = False

    def __init__(self, **options: Unpack[RouteArguments]) -> None:
        super().__init__(**options)

    @property
    def gives(self) -> Any:
        content: Any = dict if self.options.expand else bytes
        return content | None if self.options.tombstones else content

    def process(self, record: Record) -> Record | None:
        if record.operation is Operation.DELETE:
            return None
        if record.operation is Operation.UPDATE:
            self._refuse_or_warn()
            return None
        row = record.payload.after
        if not isinstance(row, dict):
            raise RecordRefused(f".Payload.After: is {kind_of(row)} and not a row of an outbox table")
        options = self.options
        topic = options.topic.render(record)
        if not topic:
            raise RecordRefused(f"the topic {options.topic} is empty")
        about = dict(record.metadata)
        for column, name in options.headers.items():
            if (value := _column(row, column)) is not None:
                about[name] = text_of(value)
        about[names.COLLECTION] = topic
        key = None if options.key is None else _raw(options.key, _column(row, options.key))
        content = self._content(_column(row, options.payload))
        if content is None and key is None:
            raise RecordRefused("has neither content nor a key, so it is no message")
        operation = Operation.CREATE if content is not None else Operation.DELETE
        return Record(record.position, operation, about, key, Payload(after=content))

    def _refuse_or_warn(self) -> None:
        if self.options.on_update == "refuse":
            raise RecordRefused(
                "is an update of a row in an outbox, and a message that was sent cannot be changed",
                suggestion='insert a row for each message, or drop updates with on_update="warn"',
            )
        if not self._warned:
            self._warned = True
            _logger.warning("a row in an outbox was updated: this update and all later ones are dropped")

    def _content(self, value: Any) -> bytes | Structured | None:
        column = self.options.payload
        if value is None or value in ("", b""):
            if self.options.tombstones:
                return None
            if value is None:
                raise RecordRefused(f"{column!r} is null: with tombstones=True such a row deletes its key")
        if not self.options.expand:
            return _raw(column, value)
        content = decode_json(value) if isinstance(value, str | bytes) else value
        if not isinstance(content, dict):
            raise RecordRefused(f"{column!r}: is {kind_of(content)} and not a JSON object, so it cannot be expanded")
        return content


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise RecordRefused(f"the row has no column {name!r}, which an option of outbox.route names")
    return row[name]


def _raw(column: str, value: Any) -> bytes | None:
    """Return the bytes of a value: text as UTF-8, objects and lists as JSON, others as they are written."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, dict | list):
        return encode_json(value)
    try:
        return text_of(value).encode()
    except UnicodeEncodeError:
        raise RecordRefused(f"{column!r} has half of a surrogate pair, which is no text") from None
