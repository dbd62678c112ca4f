"""Messages of Singer → records, checkpoints and schemas."""

import hashlib
from typing import Any

import msgspec

from conduit_connectors.lines import Lines
from conduit_py.sdk import (
    CollectionSchema,
    FatalError,
    FieldType,
    Operation,
    Payload,
    Record,
    RecordRefused,
    SchemaField,
    SourceCheckpoint,
    UnreadableRecord,
    decode_json,
    metadata,
)

_DELETED_AT = "_sdc_deleted_at"
_TYPES: dict[str, FieldType] = {
    "boolean": "boolean",
    "integer": "integer",
    "number": "float",
    "string": "string",
    "array": "list",
    "object": "record",
}
_FORMATS: dict[str, FieldType] = {"date-time": "timestamptz", "date": "date", "time": "time", "uuid": "uuid"}

Item = Record | UnreadableRecord | SourceCheckpoint | CollectionSchema


class MessageParser:
    """Parses the lines of one run of a tap, in order.

    A record has the fields that its schema names as its key. With `hard_delete` a row that has a time in
    `_sdc_deleted_at` is a delete, as targets of Singer understand it.
    """

    def __init__(self, *, hard_delete: bool) -> None:
        self._hard_delete = hard_delete
        self._keys: dict[str, tuple[str, ...]] = {}
        self._metadata: dict[str, dict[str, str]] = {}

    def parse(self, lines: Lines) -> list[Item]:
        items: list[Item] = []
        for text, end in zip(lines.texts, lines.ends, strict=True):
            try:
                if end in lines.long:
                    raise RecordRefused(f"the line has {lines.long[end]} bytes, more than `line_size_max`")
                if text.strip():
                    items += self._parse_one(text)
            except RecordRefused as refusal:
                items.append(UnreadableRecord(Record(payload=Payload(after=text)), str(refusal)))
        return items

    def _parse_one(self, text: bytes) -> list[Item]:
        message = decode_json(text)
        kind = message.get("type") if isinstance(message, dict) else None
        try:
            match kind:
                case "RECORD":
                    return [self._record(message["stream"], message["record"], message.get("version"))]
                case "STATE":
                    return [SourceCheckpoint(message["value"])]
                case "SCHEMA":
                    return [self._schema(message["stream"], message["schema"], message.get("key_properties") or ())]
                case "ACTIVATE_VERSION":
                    # Rows of older versions are gone. A row has its version in its metadata.
                    return []
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordRefused(f"is no {kind} message: {type(error).__name__}: {error}") from error
        if kind == "BATCH":
            raise FatalError(
                "the tap sends BATCH messages, whose records are in files of its own",
                suggestion="take `batch_config` out of its config",
            )
        raise RecordRefused("is no message of Singer: a line on standard output must be a JSON object with a `type`")

    def _record(self, stream: str, row: dict[str, Any], version: Any) -> Record:
        if not isinstance(row, dict):
            raise RecordRefused(f"the record of {stream!r} is no JSON object")
        key = {name: row[name] for name in self._keys.get(stream, ()) if name in row}
        about = dict(self._metadata.get(stream) or {metadata.COLLECTION: str(stream)})
        if version is not None:
            about["singer.version"] = str(version)
        deleted = self._hard_delete and row.get(_DELETED_AT) is not None
        return Record(
            operation=Operation.DELETE if deleted else Operation.CREATE,
            key=key or None,
            metadata=about,
            payload=Payload(before=row) if deleted else Payload(after=row),
        )

    def _schema(self, stream: str, schema: dict[str, Any], key: Any) -> CollectionSchema:
        self._keys[stream] = tuple(map(str, key))
        fields = tuple(_field(name, each, name in key) for name, each in (schema.get("properties") or {}).items())
        version = hashlib.blake2b(msgspec.json.encode(fields), digest_size=8).hexdigest()
        self._metadata[stream] = {metadata.COLLECTION: stream, metadata.PAYLOAD_SCHEMA_VERSION: version}
        return CollectionSchema(stream, version, fields)


def _field(name: str, schema: Any, key: bool) -> SchemaField:
    """Read a property of a JSON schema: one type beside null, also in `anyOf`. Anything else is "unknown"."""
    branches = [schema, *schema.get("anyOf", [])] if isinstance(schema, dict) else []
    types: list[tuple[str, str]] = []
    for branch in branches:
        given = branch.get("type", ())
        for each in [given] if isinstance(given, str) else given:
            types.append((each, str(branch.get("format", ""))))
    kinds = sorted({each for each in types if each[0] != "null"})
    nullable = any(each == "null" for each, _ in types) or not types
    if len(kinds) != 1:
        return SchemaField(name, "unknown", nullable, key)
    [(kind, form)] = kinds
    found = _FORMATS.get(form) if kind == "string" else None
    return SchemaField(name, found or _TYPES.get(kind, "unknown"), nullable, key, f"{kind} {form}".strip())
