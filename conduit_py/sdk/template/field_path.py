"""FieldPath: the path to a field of a record, parsed once and used for every record."""

from collections.abc import Callable
from typing import Any, Final, Self, TypeAlias

from conduit_py.errors import RecordRefused
from conduit_py.record import Data, Operation, Record, Structured
from conduit_py.sdk.plugin import TextOption
from conduit_py.sdk.template.field_syntax import (
    FieldPathInvalid,
    Names,
    RecordPart,
    field_path_error,
    format_path,
    parse_path,
)
from conduit_py.sdk.template.values import kind_of

Change: TypeAlias = Callable[[Any], Any]


class FieldPath(TextOption):
    """Reads, sets and deletes one field of records.

    A call that is not possible raises RecordRefused, which names the field, and does not change the record.

    - `get` refuses a record without the field. The parts of a record always exist: an absent key or payload is None.
    - `find` returns None for a missing field, as templates read fields.
    - `update` replaces the value of `get` by the result of a function.
    - `set` creates the structured data on the path where it is absent or null.
    - `delete` does nothing to a record without the field.
    """

    __slots__ = ("delete", "find", "get", "names", "part", "set", "update")

    def __init__(self, part: RecordPart, names: Names = ()) -> None:
        self.part = part
        self.names = names
        self.get: Callable[[Record], Any] = _getter(self)
        self.find: Callable[[Record], Any] = _finder(self)
        self.update: Callable[[Record, Change], None] = _updater(self)
        self.set: Callable[[Record, Any], None] = _setter(self)
        self.delete: Callable[[Record], None] = _deleter(self)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the path for a text. Raises ValueError if it is not a path."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise field_path_error("it must be text")
        try:
            return cls(*parse_path(value))
        except FieldPathInvalid as invalid:
            raise field_path_error("; ".join(filter(None, (invalid.message, invalid.suggestion)))) from None

    @property
    def parent(self) -> "FieldPath":
        """The path without its last name."""
        return FieldPath(self.part, self.names[:-1])

    def child(self, name: str) -> "FieldPath":
        """Return the path to a field below this one."""
        return FieldPath(self.part, (*self.names, name))

    def holder(self, record: Record) -> Structured | None:
        """Return the dict that contains the field or would; None if it is absent."""
        value: Any = _WHOLE[self.part](record)
        for depth, name in enumerate(self.names):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self._no_fields_error("delete", value, depth)
            if depth + 1 == len(self.names):
                return value
            value = value.get(name)
        return None

    def __str__(self) -> str:
        return format_path(self.part, self.names)

    def _make_holder(self, record: Record) -> Structured:
        """Return the dict that contains the field, created if absent. Refuses before it changes anything."""
        value: Any = _WHOLE[self.part](record)
        if value is None:
            value = {}
            # Attached before it is filled, so that the caller changes the record and not a copy.
            _PUT[self.part](record, value)
        for depth, name in enumerate(self.names[:-1]):
            if not isinstance(value, dict):
                raise self._no_fields_error("set", value, depth)
            inner = value.get(name)
            if inner is None:
                inner = value[name] = {}
            value = inner
        if not isinstance(value, dict):
            raise self._no_fields_error("set", value, len(self.names) - 1)
        return value

    def _missing(self, record: Record) -> RecordRefused:
        """Return why `get` found nothing: the first name that is missing."""
        value: Any = _WHOLE[self.part](record)
        for depth, name in enumerate(self.names):
            if not isinstance(value, dict):
                return self._no_fields_error("read", value, depth)
            if name not in value:
                where = format_path(self.part, self.names[:depth])
                return RecordRefused(f"the record has no {self}: {where} has no field {name!r}")
            value = value[name]
        raise AssertionError(f"{self} is in the record")

    def _no_fields_error(self, doing: str, value: object, depth: int) -> RecordRefused:
        where = format_path(self.part, self.names[:depth])
        hint = f'decode it first, for example with conduit_processors.json.Decode(field="{where}")'
        return RecordRefused(
            f"cannot {doing} {self}: {where} is {kind_of(value)}, so it has no fields",
            suggestion=hint if isinstance(value, bytes | str) else None,
        )


def _getter(path: FieldPath) -> Callable[[Record], Any]:
    whole, names = _WHOLE[path.part], path.names
    if not names:
        return whole

    def get(record: Record) -> Any:
        value = whole(record)
        # Without checks on the way: a field is missing rarely, and `_missing` then finds out where.
        try:
            for name in names:
                value = value[name]
        except (KeyError, TypeError):
            raise path._missing(record) from None
        return value

    return get


def _finder(path: FieldPath) -> Callable[[Record], Any]:
    whole, names = _FOUND.get(path.part, _WHOLE[path.part]), path.names
    if not names:
        return whole

    def find(record: Record) -> Any:
        value = whole(record)
        for depth, name in enumerate(names):
            if not isinstance(value, dict):
                # A field below a missing field is missing. But a record without a payload is refused: a condition
                # on its fields would be false for a reason that its author did not think of.
                if value is None and depth:
                    return None
                raise path._no_fields_error("read", value, depth)
            value = value.get(name)
        return value

    return find


def _updater(path: FieldPath) -> Callable[[Record, Change], None]:
    if not path.names or path.part is RecordPart.METADATA:
        return lambda record, change: path.set(record, change(path.get(record)))
    whole, (*way, last) = _WHOLE[path.part], path.names

    def update_field(record: Record, change: Change) -> None:
        holder = whole(record)
        try:
            for name in way:
                holder = holder[name]
            value = holder[last]
        except (KeyError, TypeError):
            raise path._missing(record) from None
        holder[last] = change(value)

    return update_field


def _setter(path: FieldPath) -> Callable[[Record, Any], None]:
    if not path.names:
        return _PUT[path.part]
    whole, (*way, last) = _WHOLE[path.part], path.names
    if path.part is RecordPart.METADATA:
        return lambda record, value: _put_metadata_field(record, last, value)

    def set_field(record: Record, value: Any) -> None:
        try:
            # The fast way first: usually everything on the path exists.
            holder = whole(record)
            for name in way:
                holder = holder[name]
            holder[last] = value
        except (KeyError, TypeError):
            path._make_holder(record)[last] = value

    return set_field


def _deleter(path: FieldPath) -> Callable[[Record], None]:
    if not path.names:
        clear = _CLEAR.get(path.part)
        return clear or (lambda record: _refuse_change(path.part, "deleted"))

    def delete(record: Record) -> None:
        holder = path.holder(record)
        if holder is not None:
            holder.pop(path.names[-1], None)

    return delete


def _as_data(value: object, part: RecordPart) -> Data:
    if value is None or isinstance(value, (bytes, dict)):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise RecordRefused(f"cannot set {part.value}: the text is not valid Unicode: {error}") from None
    raise RecordRefused(
        f"cannot set {part.value}: it holds raw bytes or structured data and the value is {kind_of(value)}"
    )


def _put_key(record: Record, value: Any) -> None:
    record.key = _as_data(value, RecordPart.KEY)


def _put_before(record: Record, value: Any) -> None:
    record.payload.before = _as_data(value, RecordPart.BEFORE)


def _put_after(record: Record, value: Any) -> None:
    record.payload.after = _as_data(value, RecordPart.AFTER)


def _put_operation(record: Record, value: Any) -> None:
    try:
        record.operation = Operation(value)
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise RecordRefused(f"cannot set .Operation: it must be one of {known}, not {value!r}") from None


def _put_metadata(record: Record, value: Any) -> None:
    fields = {} if value is None else value
    if not isinstance(fields, dict) or not all(isinstance(text, str) for pair in fields.items() for text in pair):
        raise RecordRefused("cannot set .Metadata: it maps text to text")
    record.metadata = fields


def _put_metadata_field(record: Record, name: str, value: Any) -> None:
    if isinstance(value, str):
        record.metadata[name] = value
    elif value is None:
        record.metadata.pop(name, None)
    else:
        where = format_path(RecordPart.METADATA, (name,))
        raise RecordRefused(f"cannot set {where}: metadata holds text and the value is {kind_of(value)}")


def _clear_payload(record: Record) -> None:
    record.payload.before = record.payload.after = None


def _refuse_change(part: RecordPart, doing: str) -> None:
    raise RecordRefused(f"{part.value} cannot be {doing}")


_WHOLE: Final[dict[RecordPart, Callable[[Record], Any]]] = {
    RecordPart.RECORD: lambda record: record,
    RecordPart.POSITION: lambda record: record.position,
    RecordPart.OPERATION: lambda record: record.operation,
    RecordPart.METADATA: lambda record: record.metadata,
    RecordPart.KEY: lambda record: record.key,
    RecordPart.PAYLOAD: lambda record: record.payload,
    RecordPart.BEFORE: lambda record: record.payload.before,
    RecordPart.AFTER: lambda record: record.payload.after,
}
_FOUND: Final[dict[RecordPart, Callable[[Record], Any]]] = {
    RecordPart.OPERATION: lambda record: record.operation.value,
    RecordPart.PAYLOAD: lambda record: {"before": record.payload.before, "after": record.payload.after},
}
"""What templates read in place of our own objects."""
_PUT: Final[dict[RecordPart, Callable[[Record, Any], None]]] = {
    RecordPart.RECORD: lambda record, value: _refuse_change(RecordPart.RECORD, "set"),
    RecordPart.POSITION: lambda record, value: _refuse_change(RecordPart.POSITION, "set"),
    RecordPart.OPERATION: _put_operation,
    RecordPart.METADATA: _put_metadata,
    RecordPart.KEY: _put_key,
    RecordPart.PAYLOAD: lambda record, value: _refuse_change(RecordPart.PAYLOAD, "set"),
    RecordPart.BEFORE: _put_before,
    RecordPart.AFTER: _put_after,
}
_CLEAR: Final[dict[RecordPart, Callable[[Record], None]]] = {
    RecordPart.METADATA: lambda record: record.metadata.clear(),
    RecordPart.KEY: lambda record: _put_key(record, None),
    RecordPart.PAYLOAD: _clear_payload,
    RecordPart.BEFORE: lambda record: _put_before(record, None),
    RecordPart.AFTER: lambda record: _put_after(record, None),
}
