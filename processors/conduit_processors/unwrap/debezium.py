"""`unwrap.debezium` unpacks the change events of Debezium's connectors."""

from collections.abc import Iterator
from typing import Any, Final, TypedDict, Unpack

from pydantic import Field

from conduit_processors.field_processor import InPayload
from conduit_processors.unwrap.envelope import as_data, open_envelope, unwrap_key
from conduit_py.sdk import Operation, Options, Payload, Processor, Record, RecordRefused, Structured, metadata
from conduit_py.sdk.template import FieldPath, kind_of, text_of

OPERATIONS: Final = {
    "c": Operation.CREATE,
    "u": Operation.UPDATE,
    "d": Operation.DELETE,
    "r": Operation.SNAPSHOT,
    "$unset": Operation.UPDATE,  # how MongoDB removes a field
}
REQUIRED: Final = ("after", "source", "op")


class DebeziumOptions(Options):
    """Options of unwrap.debezium."""

    field: InPayload = Field(
        default=FieldPath.of(".Payload.After"), description="where the event is: structured data or its JSON"
    )


class DebeziumArguments(TypedDict, total=False):
    """DebeziumOptions as a caller writes them, for editors and type checkers."""

    field: str | FieldPath


class Debezium(Processor[DebeziumOptions]):
    """Replaces the record by the change that a Debezium event describes; the position stays.

    The event may stand alone or beside its schema, as `{"schema": …, "payload": event}`. A key in such
    an envelope is unpacked too. Metadata is the record's, then `opencdc.readAt` from `ts_ms`, `opencdc.createdAt` and
    `opencdc.collection` from `source`. Other fields of the event come as `debezium.<field>`, and last the fields of
    `source` by their own names; the later wins.
    """

    blocking = False
    _field: FieldPath

    def __init__(self, **options: Unpack[DebeziumArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._field = self.options.field

    def process(self, record: Record) -> Record:
        event = self._event(record)
        operation = OPERATIONS.get(event["op"]) if isinstance(event["op"], str) else None
        if operation is None:
            raise self._refusal(f'"op" must be one of {", ".join(OPERATIONS)}, not {event["op"]!r}')
        payload = Payload(self._side(event, "before"), self._side(event, "after"))
        return Record(record.position, operation, self._metadata(record, event), unwrap_key(record.key), payload)

    def _event(self, record: Record) -> Structured:
        event = open_envelope(self._field, record)
        if "payload" in event:
            event = event["payload"]
        if not isinstance(event, dict):
            raise self._refusal(f'its "payload" is {kind_of(event)} and not an object')
        missing = [name for name in REQUIRED if name not in event]
        if missing:
            raise self._refusal(f"it has no {', '.join(missing)}")
        return event

    def _side(self, event: Structured, name: str) -> Any:
        return as_data(event.get(name), f'{self._field}: not a Debezium event: "{name}"')

    def _metadata(self, record: Record, event: Structured) -> dict[str, str]:
        source = event["source"]
        if not isinstance(source, dict):
            raise self._refusal(f'"source" is {kind_of(source)} and not an object')
        collected = dict(record.metadata)
        self._set_time(collected, metadata.READ_AT, event.get("ts_ms"))
        self._set_time(collected, metadata.CREATED_AT, source.get("ts_ms"))
        collection = source.get("table") or source.get("collection")
        if isinstance(collection, str):
            collected[metadata.COLLECTION] = collection
        for name, value in event.items():
            if name not in ("before", "after", "op", "source", "ts_ms"):
                collected.update(_flat(f"debezium.{name}", value))
        for name, value in source.items():
            collected.update(_flat(name, value))
        return collected

    def _set_time(self, collected: dict[str, str], key: str, milliseconds: object) -> None:
        """Milliseconds since 1970 as OpenCDC has times: nanoseconds, as text. Debezium may leave them out."""
        if milliseconds is None:
            return
        if isinstance(milliseconds, float) and milliseconds.is_integer():
            milliseconds = int(milliseconds)
        if not isinstance(milliseconds, int):
            raise self._refusal(f'"ts_ms" must be a whole number of milliseconds, not {milliseconds!r}')
        collected[key] = str(milliseconds * 1_000_000)

    def _refusal(self, reason: str) -> RecordRefused:
        return RecordRefused(f"{self._field}: not a Debezium event: {reason}")


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """What a value becomes in metadata, which is flat: nested fields get dotted names, nulls are left out."""
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _flat(f"{name}.{inner}", item)
    elif value is not None:
        yield name, text_of(value, name)
