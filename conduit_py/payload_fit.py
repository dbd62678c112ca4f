"""Payload fit: whether payloads of one type can become payloads of another, from the types alone.

Used when a pipeline is checked. Records are converted by `payload_type`, and every answer here is about what that does.
"""

import itertools
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import inspect

from conduit_py.payloads import is_payload, is_pydantic

WithFields: TypeAlias = inspect.StructType | inspect.DataclassType | inspect.TypedDictType


def misfits(given: Any, taken: Any) -> list[str] | None:
    """Say, field by field, why no payload of one type can become one of the other; None if some can, or may.

    Both may be unions. None stands for an absent payload, Any for what is not known. It never guesses: what a value
    could still be (a subclass, a further key of a TypedDict, the result of a validator) counts as fitting.
    """
    reasons: list[str] | None = None
    for one, other in itertools.product(union_members(given), union_members(taken)):
        found = _member_misfits(one, other)
        if found is None:
            return None
        reasons = reasons or found
    return reasons


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def payload_form(hint: Any) -> str | None:
    """Return the form of payloads of one type: "structured", "raw" or "absent"; None if the type does not say."""
    if hint is None or hint is NoneType:
        return "absent"
    kind = get_origin(hint) or hint
    if not isinstance(kind, type) or not (is_typeddict(kind) or is_payload(kind)):
        return None
    return "raw" if kind is bytes else "structured"


def describe_type(hint: Any) -> str:
    """Return what a message calls payloads of a type."""
    names: dict[Any, str] = {
        bytes: "raw bytes",
        dict: "structured data",
        None: "absent payloads",
        NoneType: "absent payloads",
    }
    members = [get_origin(each) or each for each in union_members(hint)]
    return " or ".join(names.get(each) or str(getattr(each, "__name__", each)) for each in members)


def _member_misfits(given: Any, taken: Any) -> list[str] | None:
    forms = payload_form(given), payload_form(taken)
    if None in forms or forms[0] != forms[1]:
        return None if None in forms else []
    kind, wanted = get_origin(given) or given, get_origin(taken) or taken
    if forms[0] != "structured" or dict in (kind, wanted):
        return None
    if given == taken or (not is_typeddict(wanted) and issubclass(kind, wanted)):
        return None
    names = (kind.__name__, wanted.__name__)
    if names[0] == names[1]:
        names = (f"{kind.__module__}.{names[0]}", f"{wanted.__module__}.{names[1]}")
    # A value of a type may be one of a subclass, which has further fields.
    found = [_compare(_given_fields(each), _taken_fields(taken), names) for each in (given, *_subclasses(kind))]
    return found[0] if all(found) else None


class _Fields(NamedTuple):
    """The fields of a type, as the values that records carry have them or as the type takes them."""

    types: dict[str, inspect.Type]
    sure: dict[str, set[str]]
    """The fields that every value has, or must have. Each has one of these names."""
    closed: bool
    """There are no others."""
    by_model: bool = False
    """A pydantic model takes them, which converts more."""


def _compare(given: _Fields | None, taken: _Fields | None, names: tuple[str, str], depth: int = 0) -> list[str]:
    # A type may contain itself.
    if given is None or taken is None or depth > 5:
        return []
    one, other = names
    missing = [
        f"{other} requires `{name}: {_text(taken.types[name])}`, which {one} lacks"
        for name, allowed in taken.sure.items()
        if given.closed and not allowed & given.types.keys()
    ]
    extra = [f"{one} has `{name}`, which {other} lacks" for name in given.sure if name not in taken.types]
    other_types = [
        f"`{name}` is {_text(given.types[name])} in {one} and {_text(taken.types[name])} in {other}"
        for name in given.sure
        if name in taken.types and _clash(given.types[name], taken.types[name], taken.by_model, depth)
    ]
    return [*missing, *(extra if taken.closed else []), *other_types]


def _clash(given: inspect.Type, taken: inspect.Type, by_model: bool, depth: int) -> bool:
    """Return True if no plain value of one type is accepted as one of the other."""
    pairs = list(itertools.product(_members(given), _members(taken)))
    if len(pairs) > 1:
        return all(_clash(*pair, by_model, depth) for pair in pairs)
    [(given, taken)] = pairs
    pair = _plain_kind(given), _plain_kind(taken)
    if None in pair or pair in _MAY_BECOME or (by_model and pair in _MODELS_CONVERT):
        return False
    if pair[0] != pair[1]:
        return True
    if by_model or not isinstance(given, WithFields) or not isinstance(taken, WithFields):
        return False
    if given.cls is taken.cls or _subclasses(given.cls):
        return False
    return bool(_compare(_given_fields(given.cls), _taken_fields(taken.cls), ("", ""), depth + 1))


def _given_fields(declared: Any) -> _Fields | None:
    """Return the fields of what `to_plain` makes of values of this type; None if that cannot be said."""
    if is_pydantic(get_origin(declared) or declared):
        return _model_fields(declared, given=True)
    info = _info(declared)
    if not isinstance(info, WithFields):
        return None
    types = _field_types(info)
    types |= {field.encode_name: _given_type(field.type, field.default) for field in info.fields}
    sure = {field.encode_name for field in info.fields if _is_always_there(info, field)}
    optional = {field.encode_name for field in info.fields} - sure
    # A value may have keys that its TypedDict does not name.
    closed = not isinstance(info, inspect.TypedDictType)
    return _Fields(types, {name: {name} for name in types if name not in optional}, closed)


def _given_type(info: inspect.Type, default: object) -> inspect.Type:
    # Many write `count: int = None` and never look at what a type checker says to it.
    return info if default is not None or inspect.NoneType() in _members(info) else inspect.AnyType()


def _is_always_there(info: WithFields, field: inspect.Field) -> bool:
    try:
        if "Unset" in str(get_type_hints(info.cls).get(field.name)):
            return False
    except Exception:  # a hint is the code of the user, and may raise anything
        return False
    if isinstance(info, inspect.StructType):
        return field.required or not info.cls.__struct_config__.omit_defaults
    if isinstance(info, inspect.DataclassType):
        cls: Any = info.cls
        return bool(cls.__dataclass_params__.init and cls.__dataclass_fields__[field.name].init)
    return bool(field.required)


def _taken_fields(declared: Any) -> _Fields | None:
    """Return the fields that values of this type are made of; None if code of the user decides."""
    if is_pydantic(get_origin(declared) or declared):
        return _model_fields(declared, given=False)
    info = _info(declared)
    if not isinstance(info, WithFields):
        return None
    required = {field.encode_name: {field.encode_name} for field in info.fields if field.required}
    return _Fields(_field_types(info), required, closed=True)


def _model_fields(model: Any, *, given: bool) -> _Fields | None:
    from pydantic import BaseModel, RootModel

    own = model.__mro__[: model.__mro__.index(BaseModel)]
    found = model.__pydantic_decorators__
    changes = found.model_serializers or found.field_serializers or found.computed_fields
    if not given:
        before = [*found.model_validators.values(), *found.field_validators.values()]
        changes = found.validators or found.root_validators or any(each.info.mode != "after" for each in before)
    if (
        changes
        or RootModel in own
        or not model.__pydantic_complete__
        or any(_OWN_CODE & vars(each).keys() for each in own)
    ):
        return None
    config = model.model_config
    types: dict[str, inspect.Type] = {}
    sure: dict[str, set[str]] = {}
    for name, field in model.model_fields.items():
        alias = field.serialization_alias if given else field.validation_alias
        if alias is not None and not isinstance(alias, str):
            return None
        info = _given_type(_info(field.annotation), field.default) if given else _info(field.annotation)
        plain = not field.metadata and not config.get("coerce_numbers_to_str")
        names = {alias or name} if given else {alias or name, name}
        types |= dict.fromkeys(names, info if plain else inspect.AnyType())
        always = not (field.exclude or getattr(field, "exclude_if", None) or "MISSING" in str(field.annotation))
        if always if given else field.is_required():
            sure[alias or name] = names
    extra = config.get("extra")
    return _Fields(types, sure, extra != "allow" if given else extra in (None, "forbid"), by_model=True)


_OWN_CODE = {"__init__", "__get_pydantic_core_schema__", "model_dump", "model_validate"}
"""What a model may replace, so that its fields no longer tell what it takes or gives."""


def _info(declared: Any) -> inspect.Type:
    try:
        return inspect.type_info(declared)
    except Exception:  # a type is the user's code, and resolving its fields may raise anything
        return inspect.AnyType()


def _field_types(info: WithFields) -> dict[str, inspect.Type]:
    types = {field.encode_name: field.type for field in info.fields}
    if isinstance(info, inspect.StructType) and info.tag_field is not None:
        types[info.tag_field] = inspect.AnyType()
    return types


def _subclasses(kind: type[Any]) -> list[type[Any]]:
    names = kind.__module__, kind.__qualname__
    # What a Struct is decoded into is a subclass of the same name, with the same fields.
    found = [each for each in kind.__subclasses__() if (each.__module__, each.__qualname__) != names]
    return [*found, *itertools.chain.from_iterable(map(_subclasses, found))]


def _members(info: inspect.Type) -> list[inspect.Type]:
    """Return the members of a union, or the type itself, without what is only annotated."""
    if isinstance(info, inspect.Metadata):
        return _members(info.type)
    if isinstance(info, inspect.UnionType):
        return list(itertools.chain.from_iterable(map(_members, info.types)))
    return [info]


def _plain_kind(info: inspect.Type) -> str | None:
    """Return what values of a type are in a record, for the types of which that is certain."""
    if isinstance(info, inspect.StructType) and info.array_like:
        return None
    return _PLAIN_KINDS.get(type(info))


_PLAIN_KINDS: dict[type[inspect.Type], str] = {
    inspect.StrType: "str",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.BoolType: "bool",
    inspect.NoneType: "None",
    inspect.ListType: "list",
    inspect.SetType: "list",
    inspect.FrozenSetType: "list",
    inspect.VarTupleType: "list",
    inspect.TupleType: "list",
    inspect.DictType: "dict",
    inspect.StructType: "dict",
    inspect.DataclassType: "dict",
    inspect.TypedDictType: "dict",
}
_MAY_BECOME = {("int", "float"), ("int", "bool"), ("float", "int"), ("float", "bool")}
"""Pairs that may fit. A field of type int may hold True, and one of type float any number."""
_MODELS_CONVERT = {("str", "int"), ("str", "float"), ("str", "bool"), ("bool", "int"), ("bool", "float")}


def _text(info: inspect.Type) -> str:
    if isinstance(info, WithFields):
        return info.cls.__name__
    if len(members := _members(info)) > 1:
        return " | ".join(map(_text, members))
    return _PLAIN_KINDS.get(type(members[0])) or type(members[0]).__name__.removesuffix("Type")
