"""Record: the value that flows through a pipeline, in OpenCDC shape, its JSON form, and the schema of a collection."""

import base64
import binascii
import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from conduit_py.errors import RecordRefused
from conduit_py.json_checks import JSON_DEPTH_MAX, DuplicateKeys, find_repeated_key, is_too_deep, may_repeat_keys

Structured: TypeAlias = dict[str, Any]
Data: TypeAlias = bytes | Structured | None
"""Raw bytes, structured data, or absent. Absent is not empty."""


class Operation(StrEnum):
    """What happened to the thing a record describes."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    SNAPSHOT = "snapshot"


# Records form no reference cycles, so keeping them out of the garbage collector saves its pauses.
class Payload(msgspec.Struct, gc=False):
    """The state before and after a change. Indexing reads and writes `after`."""

    before: Data = None
    after: Data = None

    # Field access is the hottest code in a pipeline. The direct attempt keeps it to one call; the check
    # after a TypeError only chooses the error message.
    def __getitem__(self, key: str) -> Any:
        try:
            return self.after[key]  # type: ignore[index, call-overload]
        except TypeError:
            return _fields(self.after)[key]

    def __setitem__(self, key: str, value: Any) -> None:
        try:
            self.after[key] = value  # type: ignore[index]
        except TypeError:
            _fields(self.after)[key] = value

    def __delitem__(self, key: str) -> None:
        del _fields(self.after)[key]

    def __contains__(self, key: object) -> bool:
        return key in _fields(self.after)

    def __iter__(self) -> Iterator[str]:
        return iter(_fields(self.after))

    def get(self, key: str, default: Any = None) -> Any:
        return _fields(self.after).get(key, default)


class Record(msgspec.Struct, gc=False):
    """One change in OpenCDC form. The position has a meaning only for its source.

    Python values in structured data (integers of any size, Decimal, datetime, bytes) reach the
    destination unchanged.
    """

    position: bytes = b""
    operation: Operation = Operation.CREATE
    metadata: dict[str, str] = {}
    key: Data = None
    payload: Payload = msgspec.field(default_factory=Payload)

    @classmethod
    def of(cls, after: Data, *, key: Data = None, position: bytes = b"") -> "Record":
        """Make a record that creates `after`: the short form for sources, tests and split pieces."""
        return cls(position=position, key=key, payload=Payload(after=after))

    def copy(self) -> "Record":
        """Return a record that shares nothing mutable with this one."""
        payload = Payload(copy_data(self.payload.before), copy_data(self.payload.after))
        return Record(self.position, self.operation, dict(self.metadata), copy_data(self.key), payload)

    def to_json(self) -> bytes:
        """Return the record in Conduit's JSON form: position and raw data in base64, absent data null."""
        # The parts that are absent are null. Any other null may hide a number that JSON lacks.
        absent = (self.key is None) + (self.payload.before is None) + (self.payload.after is None)
        return encode_json(self, nulls=absent)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Record":
        """Read Conduit's JSON form; any other text raises RecordRefused, which names the field or the repeated key."""
        return cls.from_map(decode_json(text))

    def to_map(self) -> Structured:
        """Return the JSON form as plain Python values, to be nested in another record's payload."""
        return {
            "position": _to_base64(self.position),
            "operation": self.operation.value,
            "metadata": dict(self.metadata),
            "key": _data_to_map(self.key),
            "payload": {"before": _data_to_map(self.payload.before), "after": _data_to_map(self.payload.after)},
        }

    @classmethod
    def from_map(cls, value: object) -> "Record":
        """Read the result of `to_map`; any other value raises RecordRefused, which names the field."""
        fields = _object(value, "record", allowed={"position", "operation", "metadata", "key", "payload"})
        payload = _object(fields.get("payload") or {}, "payload", allowed={"before", "after"})
        return cls(
            position=_from_base64(fields.get("position") or "", "position"),
            operation=_operation(fields.get("operation", "create")),
            metadata=_metadata(fields.get("metadata") or {}),
            key=_data_from_map(fields.get("key"), "key"),
            payload=Payload(
                _data_from_map(payload.get("before"), "payload.before"),
                _data_from_map(payload.get("after"), "payload.after"),
            ),
        )


class RecordGroup(Record, gc=False):
    """One record that contains `size` records, which settle together. Its position is that of the last one.

    Only the source that made the group and the destination that writes it read `payload.after`.
    """

    size: int = 1

    def copy(self) -> "RecordGroup":
        # The records inside are shared, not copied: no processor reads them, and they may be many.
        return RecordGroup(position=self.position, payload=Payload(after=self.payload.after), size=self.size)


# Exact types, not isinstance: a user's subclass would lose its fields where records are copied or stored.
RECORD_TYPES: frozenset[type] = frozenset({Record, RecordGroup})


FieldType: TypeAlias = Literal[
    "boolean", "integer", "float", "decimal", "string", "bytes", "date", "time", "timestamp", "timestamptz", "interval",
    "uuid", "json", "list", "record", "unknown",
]  # fmt: skip
"""What the values of a field are: exact numbers are "decimal", text of a type without a word here is "unknown"."""


class SchemaField(msgspec.Struct, frozen=True):
    """One field of the payloads of a collection."""

    name: str
    type: FieldType
    nullable: bool = True
    key: bool = False
    """True if the field is a part of the key."""
    native: str = ""
    """The type as the system of the source writes it: `numeric(12,2)`."""


class CollectionSchema(msgspec.Struct, frozen=True):
    """The fields of a collection (a table, a topic) as of a version, in the order of the collection.

    A source announces it in `Reading.schemas`, with the first records of the collection and with the first ones after a
    change. Records only have the name of the collection and the version in their metadata.
    """

    collection: str
    version: str
    fields: tuple[SchemaField, ...]


class DriftCount(msgspec.Struct):
    """Counts what did not fit its schema, for a metric. It only grows."""

    count: int = 0


def group_sizes(records: Sequence[Record]) -> list[int] | None:
    """Return the number of records in each of these; None if none is a group."""
    if type(records[0]) is not RecordGroup:
        return None
    return [record.size if isinstance(record, RecordGroup) else 1 for record in records]


def count_records(records: Sequence[Record]) -> int:
    """Return the number of records in these, groups counted by their size."""
    sizes = group_sizes(records) if records else None
    return len(records) if sizes is None else sum(sizes)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


def encode_json(value: object, *, nulls: int = 0) -> bytes:
    """Encode a value of a record, with so many nulls. One without a JSON form raises RecordRefused, which names it."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordRefused(f"cannot be written as JSON: {error}") from error
    # Invariant 12: the encoder writes null for NaN and infinity. Only a text with one null more can hide one.
    if b"null" in text and text.count(b"null") != nulls:
        refuse_non_finite(value)
    return text


def decode_json(text: bytes | str, *, duplicate_keys: DuplicateKeys = "refuse") -> Any:
    """Decode a JSON text, integers exactly. RecordRefused if it is malformed, repeats a key or is nested too deeply.

    With `duplicate_keys="last"` a key that an object repeats has the last of its values.
    """
    try:
        value = _DECODER.decode(text)
        written = text.encode() if isinstance(text, str) else text
        if is_too_deep(written, value):
            # Here, where it enters: later nothing could store it, not even the dead letter of its refusal.
            raise RecordRefused(f"is nested more than {JSON_DEPTH_MAX} deep")
        # Invariant 12: the decoder keeps the last value of a repeated key, so the others would be lost silently.
        if duplicate_keys == "last" or not may_repeat_keys(written, value):
            return value
        repeated = find_repeated_key(written)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused(f"not valid JSON: {error}") from error
    if repeated is not None:
        raise RecordRefused(f"the key {repeated[:100]!r} is there twice in one object")
    return value


def refuse_non_finite(value: object, path: str = "") -> None:
    """Raise RecordRefused with the path of the first NaN or infinite number inside `value`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordRefused(f"cannot be written as JSON: {path or 'the value'} is {value}")
    elif type(value) in _UNCHANGING:
        return
    elif isinstance(value, dict):
        for key, item in value.items():
            refuse_non_finite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            refuse_non_finite(item, f"{path}[{index}]")
    elif isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
        for name in names:
            refuse_non_finite(getattr(value, name), f"{path}.{name}" if path else name)


def copy_data(value: Any) -> Any:
    """Make a deep copy, many times faster than `copy.deepcopy` for the usual types in records."""
    kind = type(value)
    if kind is dict:
        return {key: copy_data(item) for key, item in value.items()}
    if kind is list:
        return [copy_data(item) for item in value]
    # Any other type may be mutable, so only a deep copy keeps two records apart.
    return value if kind in _UNCHANGING else copy.deepcopy(value)


_UNCHANGING = {type(None), bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, UUID}


def _fields(data: Data) -> Structured:
    if isinstance(data, dict):
        return data
    if data is None:
        raise RecordRefused("payload.after is absent, so it has no fields")
    raise RecordRefused(
        "payload.after is raw bytes, so it has no fields",
        suggestion="decode it first, for example with conduit_processors.json.Decode",
    )


def _object(value: object, name: str, *, allowed: set[str]) -> Structured:
    if not isinstance(value, dict):
        raise RecordRefused(f"{name} must be an object, not {type(value).__name__}")
    unknown = sorted(set(value) - allowed)
    if unknown:
        raise RecordRefused(f"{name} has unknown fields: {', '.join(map(repr, unknown))}")
    return value


def _operation(value: object) -> Operation:
    try:
        return Operation(value)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(operation.value for operation in Operation)
        raise RecordRefused(f"operation must be one of {names}, not {value!r}") from None


def _metadata(value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        return value
    raise RecordRefused("metadata must map text to text")


def _to_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _from_base64(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise RecordRefused(f"{name} must be base64 text, not {type(value).__name__}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordRefused(f"{name} is not base64: {error}") from None


def _data_to_map(data: Data) -> str | Structured | None:
    return _to_base64(data) if isinstance(data, bytes) else data


def _data_from_map(value: object, name: str) -> Data:
    if value is None or isinstance(value, dict):
        return value
    return _from_base64(value, name)
