"""FieldPath: a place in a record, parsed once and then used for every record."""

from collections.abc import Callable
from typing import Any, Final, Self, TypeAlias

from conduit_py.sdk import Data, Operation, Record, RecordRefused, Structured
from conduit_py.sdk.template.field_syntax import Path, RecordPart, field_path_error, format_path, parse_path
from conduit_py.sdk.text_option import TextOption

Change: TypeAlias = Callable[[Any], Any]


class FieldPath(TextOption):
    """Reads, sets and deletes one place in records.

    Whatever cannot be done raises RecordRefused naming the place, and the record is as it was:

    - `get` refuses a record that lacks the field. The parts of a record are always there: an absent
      key or payload is None.
    - `update` replaces what `get` would return by what a function makes of it.
    - `set` makes the structured data it needs on the way, in place of what is absent or null.
    - `delete` leaves a record without the field alone.
    """

    __slots__ = ("delete", "get", "path", "root", "set", "update")

    def __init__(self, root: RecordPart, path: Path = ()) -> None:
        self.root = root
        self.path = path
        self.get: Callable[[Record], Any] = _getter(self)
        self.update: Callable[[Record, Change], None] = _updater(self)
        self.set: Callable[[Record, Any], None] = _setter(self)
        self.delete: Callable[[Record], None] = _deleter(self)

    @classmethod
    def of(cls, value: object) -> Self:
        """A reference as a user wrote it; what is none raises ValueError."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise field_path_error("it must be text")
        return cls(*parse_path(value))

    @property
    def parent(self) -> "FieldPath":
        """What the last name of the path is a field of."""
        return FieldPath(self.root, self.path[:-1])

    def holder(self, record: Record) -> Structured | None:
        """The dict that has the field or would have it, None when that is absent itself."""
        value: Any = _WHOLE[self.root](record)
        for depth, name in enumerate(self.path):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self._unstructured("delete", value, depth)
            if depth + 1 == len(self.path):
                return value
            value = value.get(name)
        return None

    def __str__(self) -> str:
        return format_path(self.root, self.path)

    def _make_holder(self, record: Record) -> Structured:
        """The dict that has the field, made if it is absent. It refuses before it makes anything."""
        value: Any = _WHOLE[self.root](record)
        if value is None:
            value = {}
            _PUT[self.root](record, value)
        for depth, name in enumerate(self.path[:-1]):
            if not isinstance(value, dict):
                raise self._unstructured("set", value, depth)
            inner = value.get(name)
            if inner is None:
                inner = value[name] = {}
            value = inner
        if not isinstance(value, dict):
            raise self._unstructured("set", value, len(self.path) - 1)
        return value

    def _missing(self, record: Record) -> RecordRefused:
        """Why `get` found nothing: where the path left the record."""
        value: Any = _WHOLE[self.root](record)
        for depth, name in enumerate(self.path):
            if not isinstance(value, dict):
                return self._unstructured("read", value, depth)
            if name not in value:
                where = format_path(self.root, self.path[:depth])
                return RecordRefused(f"the record has no {self}: {where} has no field {name!r}")
            value = value[name]
        raise AssertionError(f"{self} is in the record")

    def _unstructured(self, doing: str, value: object, depth: int) -> RecordRefused:
        where = format_path(self.root, self.path[:depth])
        suggestion = None
        if isinstance(value, (bytes, str)):
            suggestion = f'decode it first, for example with conduit_processors.json.Decode(field="{where}")'
        return RecordRefused(
            f"cannot {doing} {self}: {where} is {kind(value)}, so it has no fields", suggestion=suggestion
        )


def kind(value: object) -> str:
    """What a value is, in a user's words."""
    return _KINDS.get(type(value)) or f"of type {type(value).__name__}"


_KINDS: dict[type, str] = {
    bytes: "raw bytes",
    str: "text",
    dict: "structured data",
    list: "a list",
    type(None): "absent",
}


def _getter(reference: FieldPath) -> Callable[[Record], Any]:
    whole, path = _WHOLE[reference.root], reference.path
    if not path:
        return whole

    def get(record: Record) -> Any:
        value = whole(record)
        try:
            for name in path:
                value = value[name]
        except (KeyError, TypeError):
            raise reference._missing(record) from None
        return value

    return get


def _updater(reference: FieldPath) -> Callable[[Record, Change], None]:
    if not reference.path or reference.root is RecordPart.METADATA:
        return lambda record, change: reference.set(record, change(reference.get(record)))
    whole, (*way, last) = _WHOLE[reference.root], reference.path

    def update_field(record: Record, change: Change) -> None:
        holder = whole(record)
        try:
            for name in way:
                holder = holder[name]
            value = holder[last]
        except (KeyError, TypeError):
            raise reference._missing(record) from None
        holder[last] = change(value)

    return update_field


def _setter(reference: FieldPath) -> Callable[[Record, Any], None]:
    if not reference.path:
        return _PUT[reference.root]
    whole, (*way, last) = _WHOLE[reference.root], reference.path
    if reference.root is RecordPart.METADATA:
        return lambda record, value: _put_metadata_field(record, last, value)

    def set_field(record: Record, value: Any) -> None:
        try:
            holder = whole(record)
            for name in way:
                holder = holder[name]
            holder[last] = value
        except (KeyError, TypeError):
            reference._make_holder(record)[last] = value

    return set_field


def _deleter(reference: FieldPath) -> Callable[[Record], None]:
    if not reference.path:
        clear = _CLEAR.get(reference.root)
        return clear or (lambda record: _refuse_change(reference.root, "deleted"))

    def delete(record: Record) -> None:
        holder = reference.holder(record)
        if holder is not None:
            holder.pop(reference.path[-1], None)

    return delete


def _as_data(value: object, root: RecordPart) -> Data:
    if value is None or isinstance(value, (bytes, dict)):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise RecordRefused(f"cannot set {root.value}: the text is not valid Unicode: {error}") from None
    raise RecordRefused(
        f"cannot set {root.value}: it holds raw bytes or structured data and the value is {kind(value)}"
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
        raise RecordRefused(f"cannot set {where}: metadata holds text and the value is {kind(value)}")


def _clear_payload(record: Record) -> None:
    record.payload.before = record.payload.after = None


def _refuse_change(root: RecordPart, doing: str) -> None:
    raise RecordRefused(f"{root.value} cannot be {doing}")


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
