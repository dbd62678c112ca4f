"""PayloadType: the type of payload that a processor takes by its signature, and how payloads become values of it."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, get_origin, is_typeddict

import msgspec
from msgspec import inspect

from conduit_py.errors import RecordRefused
from conduit_py.payloads import is_pydantic, to_plain


class PayloadType:
    """A type of payload. `convert` turns any payload into a value of it, or refuses the record and names the field.

    A field that the type does not have is a refusal too. A pydantic model decides that by its own `extra`.
    """

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        kind = get_origin(declared) or declared
        self._is_typed_dict = is_typeddict(kind)
        self.kind: type = dict if self._is_typed_dict else kind
        self.name = getattr(declared, "__name__", str(declared))
        self.decodes_into: type[msgspec.Struct] | None = None
        """The type that a source may decode into, so that no conversion is left to do."""
        self.convert = self._conversion(declared)

    def accepts(self, kind: type | None) -> bool:
        """Return True if payloads of this type need no conversion."""
        if self._is_typed_dict:
            # The type of the value says nothing about its fields.
            return False
        return kind is self.kind or (kind is not None and self.decodes_into in kind.__mro__)

    def _conversion(self, declared: Any) -> Callable[[Any], Any]:
        if declared is bytes:
            return self._to_bytes
        if self.kind is dict and not self._is_typed_dict:
            return self._to_dict
        if is_pydantic(self.kind):
            return self._pydantic(declared)
        info = inspect.type_info(declared)
        wanted = declared
        if isinstance(info, inspect.StructType):
            wanted = strict_form(self.kind)
            if not any(_drops_fields(field.type) for field in info.fields):
                self.decodes_into = wanted
                return self._strict(wanted)
        return self._checked(info, wanted)

    def _to_bytes(self, value: Any) -> bytes:
        if type(value) is bytes:
            return value
        raise RecordRefused(f"payload.after is {_form(value)}, but the processor takes raw bytes")

    def _to_dict(self, value: Any) -> dict[str, Any]:
        if type(value) is dict:
            return value
        fields = to_plain(self._with_fields(value))
        assert isinstance(fields, dict)
        return fields

    def _strict(self, wanted: type) -> Callable[[Any], Any]:
        kind = self.kind

        def convert(value: Any) -> Any:
            if isinstance(value, kind):
                return value
            try:
                return msgspec.convert(to_plain(self._with_fields(value)), wanted)
            except msgspec.ValidationError as error:
                raise self._misfit(error) from error

        return convert

    def _checked(self, info: inspect.Type, wanted: Any) -> Callable[[Any], Any]:
        """Convert by way of a dict, because the library itself ignores fields that this type does not have."""
        kind = self.kind

        def convert(value: Any) -> Any:
            if kind is not dict and isinstance(value, kind):
                return value
            fields = to_plain(self._with_fields(value))
            # Invariant 12: a field that the type does not have is refused, never dropped.
            if (unknown := _unknown_field(fields, info, "$")) is not None:
                raise self._misfit(f"Object contains unknown field `{unknown}`")
            try:
                return msgspec.convert(fields, wanted)
            except msgspec.ValidationError as error:
                raise self._misfit(error) from error

        return convert

    def _pydantic(self, model: Any) -> Callable[[Any], Any]:
        from pydantic import ValidationError

        # By default pydantic ignores fields that a model does not have, at every depth.
        extra = model.model_config.get("extra") or "forbid"

        def convert(value: Any) -> Any:
            if isinstance(value, model):
                return value
            try:
                return model.model_validate(to_plain(self._with_fields(value)), extra=extra)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"])) or "$"
                raise self._misfit(f"{first['msg']} - at `{where}`") from error

        return convert

    def _with_fields(self, value: Any) -> Any:
        if value is None or isinstance(value, bytes):
            raise RecordRefused(
                f"payload.after is {_form(value)}, but the processor takes {self.name}",
                suggestion='decode it first: read it with format="json", or use conduit_processors.json.Decode',
            )
        return value

    def _misfit(self, why: object) -> RecordRefused:
        return RecordRefused(f"payload.after is no {self.name}: {why}")


@lru_cache(maxsize=1024)
def strict_form(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the Struct itself or a subclass of the same name that refuses fields it does not have."""
    if kind.__struct_config__.forbid_unknown_fields:
        return kind
    fields = kind.__struct_fields__

    def equal(self: Any, other: object) -> Any:
        # A Struct equals only its own type, and the user compares with the type that they wrote.
        if not isinstance(other, kind):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in fields)

    namespace: dict[str, Any] = {}
    if kind.__struct_config__.eq:
        namespace = {"__eq__": equal, "__hash__": kind.__hash__}
    return msgspec.defstruct(
        kind.__name__,
        [],
        bases=(kind,),
        module=kind.__module__,
        namespace={**namespace, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__},
        forbid_unknown_fields=True,
    )


def _drops_fields(info: inspect.Type) -> bool:
    """Return True if decoding into this type may drop a field at some depth."""
    if isinstance(info, inspect.StructType):
        drops = not info.forbid_unknown_fields
        return drops or any(_drops_fields(field.type) for field in info.fields)
    if isinstance(info, inspect.DataclassType | inspect.TypedDictType):
        return True
    return any(map(_drops_fields, _inner(info)))


def _inner(info: inspect.Type) -> list[inspect.Type]:
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return [info.item_type]
    if isinstance(info, inspect.CollectionType):
        return [info.item_type]
    if isinstance(info, inspect.TupleType):
        return list(info.item_types)
    if isinstance(info, inspect.DictType):
        return [info.value_type]
    if isinstance(info, inspect.UnionType):
        return list(info.types)
    if isinstance(info, inspect.Metadata):
        return [info.type]
    return []


def _unknown_field(value: Any, info: inspect.Type, path: str) -> str | None:
    """Return the path of the first field in `value` that its type does not have."""
    if isinstance(info, inspect.Metadata):
        return _unknown_field(value, info.type, path)
    if isinstance(info, inspect.UnionType):
        found_by = [_unknown_field(value, each, path) for each in info.types if _has_shape(each, value)]
        return None if None in found_by else next(iter(found_by), None)
    if not _has_shape(info, value):
        return None
    for where, item, inner in _items(value, info, path):
        found = where if inner is None else _unknown_field(item, inner, where)
        if found is not None:
            return found
    return None


def _has_shape(info: inspect.Type, value: Any) -> bool:
    """Return True if the type has parts, and `value` is a container of that form."""
    if isinstance(info, _WITH_FIELDS | inspect.DictType):
        return isinstance(value, dict)
    return bool(_inner(info)) and isinstance(value, list | tuple | set | frozenset)


def _items(value: Any, info: inspect.Type, path: str) -> Iterator[tuple[str, Any, inspect.Type | None]]:
    """The parts of a value, each with its path and type; None for a field that the type does not have."""
    if isinstance(info, _WITH_FIELDS):
        known: dict[str, inspect.Type] = {field.encode_name: field.type for field in info.fields}
        if isinstance(info, inspect.StructType) and info.tag_field is not None:
            known[info.tag_field] = inspect.AnyType()
        for name, item in value.items():
            yield f"{path}.{name}", item, known.get(name)
    elif isinstance(info, inspect.DictType):
        for name, item in value.items():
            yield f"{path}.{name}", item, info.value_type
    else:
        types = _inner(info)
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item, types[min(index, len(types) - 1)]


_WITH_FIELDS = inspect.StructType | inspect.DataclassType | inspect.TypedDictType


def _form(value: Any) -> str:
    return "absent" if value is None else "raw bytes" if isinstance(value, bytes) else "structured"
