"""ProtobufCodec: messages of one schema as structured data, exactly.

Enums are names, maps have text as keys, bytes are bytes. A field that can be absent is None if it is.
"""

import math
from typing import Any

from conduit_processors.protobuf.compiler import ROOT
from conduit_processors.registry.client import SchemaUnusable
from conduit_processors.registry.wire_format import decode_indexes, encode_indexes
from conduit_py.sdk import RecordRefused
from conduit_py.sdk.template import kind_of


class ProtobufCodec:
    """Encodes the message of that name, or the first one of the schema; decodes any message of it."""

    raw: str | None = None

    def __init__(self, descriptors: bytes, message: str | None = None) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool

        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        self._pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                self._pool.Add(file)
        except (TypeError, ValueError, KeyError) as error:
            raise SchemaUnusable(f"it is no Protobuf schema: {str(error)[:200]}") from error
        self._file = next(file for file in files.file if file.name == ROOT)
        self._classes: dict[tuple[int, ...], Any] = {}
        self._message = message

    def decode(self, data: bytes, start: int) -> Any:
        from google.protobuf.message import DecodeError

        indexes, start = decode_indexes(data, start)
        message = self._class(indexes)()
        try:
            message.ParseFromString(data[start:])
        except DecodeError as error:
            raise RecordRefused(f"is no message of {message.DESCRIPTOR.full_name}: {str(error)[:200]}") from error
        size = message.ByteSize()
        message.DiscardUnknownFields()
        # Left out, they would be lost silently.
        if message.ByteSize() != size:
            raise RecordRefused(f"has fields that {message.DESCRIPTOR.full_name} does not have")
        return _value_of(message)

    def encode(self, value: Any) -> bytes:
        from google.protobuf.message import EncodeError

        indexes = self._indexes_of(self._message)
        message = self._class(indexes)()
        try:
            _fill(message, value, "")
            data: bytes = message.SerializeToString(deterministic=True)
            return encode_indexes(indexes) + data
        except EncodeError as error:
            raise RecordRefused(f"is no message of {message.DESCRIPTOR.full_name}: {str(error)[:200]}") from error
        except RecursionError:
            raise RecordRefused("is nested too deeply") from None

    def _class(self, indexes: tuple[int, ...]) -> Any:
        found = self._classes.get(indexes)
        if found is None:
            from google.protobuf import message_factory

            name, messages = self._file.package, self._file.message_type
            for index in indexes:
                if index >= len(messages):
                    raise RecordRefused(f"is message {'.'.join(map(str, indexes))} of a schema that does not have it")
                name, messages = f"{name}.{messages[index].name}".lstrip("."), messages[index].nested_type
            found = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
            self._classes[indexes] = found
        return found

    def _indexes_of(self, wanted: str | None) -> tuple[int, ...]:
        if wanted is None:
            return (0,)
        prefix = f"{self._file.package}." if self._file.package else ""
        names, messages, indexes = wanted.removeprefix(prefix).split("."), self._file.message_type, []
        for name in names:
            index = next((index for index, each in enumerate(messages) if each.name == name), None)
            if index is None:
                raise RecordRefused(f"has no message {wanted[:100]!r} in its schema", suggestion="check record_name")
            indexes.append(index)
            messages = messages[index].nested_type
        return tuple(indexes)


def _value_of(message: Any) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if _is_map(field):
            entry = field.message_type.fields_by_name["value"]
            found = getattr(message, field.name)
            value[field.name] = {_key_text(key): _single(entry, found[key]) for key in found}
        elif field.is_repeated:
            value[field.name] = [_single(field, item) for item in getattr(message, field.name)]
        elif field.has_presence and not message.HasField(field.name):
            value[field.name] = None
        else:
            value[field.name] = _single(field, getattr(message, field.name))
    return value


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _value_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        # The number of a later version of the enum stays a number.
        return value if known is None else known.name
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(key).lower()


def _fill(message: Any, value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise _refusal(path, value, "a message")
    fields = message.DESCRIPTOR.fields_by_name
    of_choice: dict[str, str] = {}
    for name, item in value.items():
        field = fields.get(name) if isinstance(name, str) else None
        inner = f"{path}.{name}" if path else str(name)
        if field is None:
            raise RecordRefused(f"the field {inner[:200]!r} is not in the schema")
        if item is None:
            if not field.has_presence:
                raise RecordRefused(f"the field {inner[:200]!r} is null, and cannot be absent")
            continue
        choice = field.containing_oneof
        if choice is not None and of_choice.setdefault(choice.name, inner) != inner:
            raise RecordRefused(f"the fields {of_choice[choice.name]!r} and {inner[:200]!r} exclude each other")
        _fill_field(message, field, item, inner)


def _fill_field(message: Any, field: Any, item: Any, path: str) -> None:
    if _is_map(field):
        _fill_map(getattr(message, field.name), field, item, path)
    elif field.is_repeated:
        if not isinstance(item, list | tuple):
            raise _refusal(path, item, "a list")
        into = getattr(message, field.name)
        for number, each in enumerate(item):
            if field.message_type is not None:
                _fill(into.add(), each, f"{path}.{number}")
            else:
                into.append(_scalar(field, each, f"{path}.{number}"))
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        # Present, even if nothing is set in it.
        inner.SetInParent()
        _fill(inner, item, path)
    else:
        setattr(message, field.name, _scalar(field, item, path))


def _fill_map(into: Any, field: Any, item: Any, path: str) -> None:
    if not isinstance(item, dict):
        raise _refusal(path, item, "a map")
    key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for key, each in item.items():
        inner = f"{path}.{key}"
        checked = _scalar(key_field, _key_of(key_field, key, inner), inner)
        if value_field.message_type is not None:
            _fill(into[checked], each, inner)
        else:
            into[checked] = _scalar(value_field, each, inner)


def _key_of(field: Any, key: Any, path: str) -> Any:
    """The key of a map that its text stands for."""
    if field.type == field.TYPE_STRING or not isinstance(key, str):
        return key
    if field.type == field.TYPE_BOOL:
        return {"true": True, "false": False}.get(key, key)
    try:
        return int(key)
    except ValueError:
        raise _refusal(path, key, "a whole number") from None


def _scalar(field: Any, value: Any, path: str) -> Any:
    kind = field.type
    if kind == field.TYPE_ENUM:
        return _enum_number(field, value, path)
    if kind in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return _float(field, value, path)
    wanted: Any = bytes if kind == field.TYPE_BYTES else _WANTED.get(field.cpp_type, int)
    # Exact: True is an int to Python.
    if type(value) is not wanted:
        raise _refusal(path, value, _CALLED[wanted])
    if wanted is int:
        bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
        signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not low <= value <= high:
            raise RecordRefused(f"the field {path[:200]!r} is an integer that {bits} bits do not hold")
    if wanted is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RecordRefused(f"the field {path[:200]!r} is text that is not valid Unicode") from None
    return value


_WANTED: dict[int, type] = {7: bool, 9: str}
"""By the number that Protobuf has for bool and for text; all others here are integers."""
_CALLED: dict[Any, str] = {bool: "a boolean", str: "text", bytes: "bytes", int: "an integer"}


def _float(field: Any, value: Any, path: str) -> float:
    if type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if number != value:
            raise RecordRefused(f"the field {path[:200]!r} is an integer that no float is equal to")
        return number
    if type(value) is not float:
        raise _refusal(path, value, "a float")
    if field.type == field.TYPE_FLOAT and math.isfinite(value) and abs(value) > _FLOAT_MAX:
        raise RecordRefused(f"the field {path[:200]!r} is beyond the range of a float of 32 bits")
    return value


_FLOAT_MAX = (2 - 2**-23) * 2.0**127


def _enum_number(field: Any, value: Any, path: str) -> int:
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    known = field.enum_type.values_by_name.get(value) if isinstance(value, str) else None
    if known is None:
        raise _refusal(path, value, f"one of {', '.join(field.enum_type.values_by_name)[:200]}")
    number: int = known.number
    return number


def _refusal(path: str, value: Any, expected: str) -> RecordRefused:
    found = "null" if value is None else kind_of(value)
    where = f"the field {path[:200]!r}" if path else "it"
    return RecordRefused(f"{where} is {found} ({type(value).__name__}) and not {expected}")
