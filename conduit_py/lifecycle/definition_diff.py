"""diff_definitions: what a new definition of a pipeline changes, and whether it needs a restart for that.

Loading a Python file again creates every function and class again, so identity says nothing. They are compared by
content: code, defaults, closures, the globals they use, options, attributes. What cannot be compared counts as
different: swapping a processor for an equal one costs little, keeping one that was edited would be wrong.
"""

import dataclasses
import functools
import operator
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.graph.node import Graph, Node
from conduit_py.payload_type import PayloadType
from conduit_py.sdk.plugin import Plugin


@dataclass(frozen=True)
class DefinitionDiff:
    """How a definition differs from the one before it."""

    processors: frozenset[str] = frozenset()
    """The nodes whose processors differ; they can be swapped while the pipeline runs."""
    description: bool = False
    """Whether the description differs, which needs no action."""
    restart_reason: str | None = None
    """What else differs, if anything: the pipeline must be restarted for it."""

    def __bool__(self) -> bool:
        return bool(self.processors) or self.description or self.restart_reason is not None


def diff_definitions(old: Graph, new: Graph) -> DefinitionDiff:
    """Compare two definitions of one pipeline."""
    # The shape first: nodes can be compared one by one only if both graphs have the same.
    if _graph_shape(old) != _graph_shape(new):
        return DefinitionDiff(restart_reason="the graph")
    if not definitions_equal(_settings(old), _settings(new)):
        return DefinitionDiff(restart_reason="the settings")
    changed = set()
    for id, node in new.nodes.items():
        # Not by `==`: loading a file again creates other functions and classes that do the same.
        if not definitions_equal(_node(old.nodes[id]), _node(node)):
            if node.kind != "processor":
                return DefinitionDiff(restart_reason=f"the {node.kind} {id}")
            for what, is_so in _FIXED_AT_START.items():
                if is_so(old.nodes[id]) != is_so(node):
                    return DefinitionDiff(restart_reason=f"whether {id} {what}")
            changed.add(id)
    # Executors have pickled copies of the processors, which a swap on the driver does not reach.
    if changed and new.pipeline.spark is not None:
        return DefinitionDiff(restart_reason=f"{', '.join(sorted(changed))}, which runs on Spark,")
    description = old.pipeline.settings.description != new.pipeline.settings.description
    return DefinitionDiff(frozenset(changed), description)


def _graph_shape(graph: Graph) -> list[tuple[object, ...]]:
    """The nodes and edges, in order: the vote of a destination is its place among them."""
    return [(node.id, node.kind, tuple(node.inputs), tuple(node.outputs)) for node in graph.nodes.values()]


def _settings(graph: Graph) -> tuple[Any, ...]:
    pipeline = graph.pipeline
    settings = pipeline.settings.model_dump(exclude={"description"})
    rest = _definition_of(pipeline, "settings", "sources", "destinations", "dead_letters")
    return settings, rest, _definition_of(pipeline.dead_letters)


def _node(node: Node) -> dict[str, Any]:
    """The definition of a node, without what is part of the shape of the graph."""
    return _definition_of(node.declared, "after", "named")


_FIXED_AT_START: dict[str, Callable[[Node], object]] = {
    "has a state": attrgetter("stateful"),
    "defers": attrgetter("defers"),
    "collects": lambda node: (node.collects, getattr(node.declared, "batch_size", None)),
    "has as much of its state in memory": lambda node: getattr(node.declared, "state_cache_bytes", None),
}
"""What a run sets up when it starts, so a swap cannot change it."""


def _definition_of(declared: object, *leave_out: str) -> dict[str, Any]:
    passed_over = {"place", "problems", "processors", *leave_out}
    return {name: value for name, value in sorted(vars(declared).items()) if name not in passed_over}


_PLAIN = (
    str, bytes, int, float, complex, bool, type(None), type(...), Decimal, date, datetime, time, timedelta, tzinfo,
    UUID, PurePath, range, re.Pattern, SecretStr, SecretBytes,
)  # fmt: skip
"""Types that `==` compares by value."""


def definitions_equal(one: object, other: object) -> bool:
    """Whether the two behave the same; False when that cannot be decided."""
    return _Comparison().same(one, other)


class _Comparison:
    """Compares two values in depth. A pair that is being compared counts as equal: functions may call each other."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()
        # Kept alive: the id of an object that is gone may be given to another one.
        self._kept: list[tuple[object, object]] = []

    def same(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        if type(one) is not type(other) and not self._same_class_again(type(one), type(other)):
            return False
        pair = (id(one), id(other))
        # Functions may refer to each other; without this the comparison would not end.
        if pair in self._pairs:
            return True
        self._pairs.add(pair)
        self._kept.append((one, other))
        return self._alike(one, other)

    def _same_class_again(self, one: type, other: type) -> bool:
        return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__) and self.same(one, other)

    def _alike(self, one: Any, other: Any) -> bool:
        if isinstance(one, Enum):
            return one.name == other.name and self.same(one.value, other.value)
        if isinstance(one, _PLAIN):
            # 1 == True and 0.0 == -0.0, but a processor may tell them apart.
            return bool(one == other) and repr(one) == repr(other)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(self.same, one, other))
        if isinstance(one, set | frozenset):
            # Elements of a set have no order to compare them in pairs, so only plain ones are decided.
            return bool(one == other) and all(isinstance(each, _PLAIN) for each in one)
        if isinstance(one, dict | types.MappingProxyType):
            # With the order: it is the order of nodes, fields and columns.
            return list(one) == list(other) and self._fields(one, other, list(one))
        if isinstance(one, type):
            return self._classes(one, other)
        return self._callables(one, other)

    def _callables(self, one: Any, other: Any) -> bool:
        if isinstance(one, types.FunctionType):
            return self._functions(one, other)
        if isinstance(one, types.CodeType):
            return _code_shape(one) == _code_shape(other) and self.same(one.co_consts, other.co_consts)
        if isinstance(one, types.CellType):
            return self.same(_content(one), _content(other))
        if isinstance(one, types.MethodType):
            return self.same(one.__func__, other.__func__) and self.same(one.__self__, other.__self__)
        if isinstance(one, functools.partial):
            return self.same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
        if isinstance(one, staticmethod | classmethod):
            return self.same(one.__func__, other.__func__)
        if isinstance(one, property):
            return self.same((one.fget, one.fset, one.fdel), (other.fget, other.fset, other.fdel))
        if isinstance(one, functools._lru_cache_wrapper):
            return self.same(one.__wrapped__, other.__wrapped__)
        if isinstance(one, operator.itemgetter | operator.attrgetter | operator.methodcaller):
            return self.same(one.__reduce__(), other.__reduce__())
        if isinstance(one, types.MemberDescriptorType):
            return bool(one.__name__ == other.__name__)
        return self._objects(one, other)

    def _objects(self, one: Any, other: Any) -> bool:
        if isinstance(one, Plugin):
            attributes = [name for name in vars(one) if name not in ("place", "problems")]
            known = sorted(attributes) == sorted(name for name in vars(other) if name not in ("place", "problems"))
            return known and self._fields(vars(one), vars(other), attributes)
        if isinstance(one, PayloadType):
            return self.same(one.declared, other.declared)
        if isinstance(one, BaseModel):
            return self.same((dict(one), one.__pydantic_private__), (dict(other), other.__pydantic_private__))
        if isinstance(one, msgspec.Struct):
            return self.same(msgspec.structs.asdict(one), msgspec.structs.asdict(other))
        if dataclasses.is_dataclass(one):
            names = [field.name for field in dataclasses.fields(one)]
            return all(self.same(getattr(one, name), getattr(other, name)) for name in names)
        # A lock, a client, a cache: there is no telling what it stands for, unless it is a value and says so.
        return type(one) is type(other) and _is_value(type(one)) and bool(one == other)

    def _functions(self, one: types.FunctionType, other: types.FunctionType) -> bool:
        return (
            self.same(one.__code__, other.__code__)
            and self.same(one.__defaults__, other.__defaults__)
            and self.same(one.__kwdefaults__, other.__kwdefaults__)
            and self.same(one.__closure__, other.__closure__)
            and self.same(_attributes(one), _attributes(other))
            and self._globals(one, other)
        )

    def _globals(self, one: types.FunctionType, other: types.FunctionType) -> bool:
        """Whether the globals that they use, also in nested functions, are equal."""
        for name in sorted(_names(one.__code__)):
            here, there = name in one.__globals__, name in other.__globals__
            if here != there:
                return False
            if here and not self.same(one.__globals__[name], other.__globals__[name]):
                return False
        return True

    def _classes(self, one: type, other: type) -> bool:
        names = {name for name in vars(one) if name not in _MADE_BY_PYTHON}
        # As text: annotations may name classes that were created again and are never equal.
        if any(repr(vars(one).get(name)) != repr(vars(other).get(name)) for name in _COMPARED_AS_TEXT):
            return False
        if one.__bases__ != other.__bases__ and not self.same(one.__bases__, other.__bases__):
            return False
        if issubclass(one, BaseModel):
            # The rest of the class is derived from these by pydantic, unless it has validators.
            return not _validates(one) and not _validates(other) and self.same(_model(one), _model(other))
        if names != {name for name in vars(other) if name not in _MADE_BY_PYTHON}:
            return False
        if issubclass(one, msgspec.Struct) and not self.same(_struct(one), _struct(other)):
            return False
        return self._fields(vars(one), vars(other), sorted(names))

    def _fields(self, one: Mapping[Any, Any], other: Mapping[Any, Any], names: list[Any]) -> bool:
        return all(self.same(one[name], other[name]) for name in names)


_COMPARED_AS_TEXT = ("__annotations__", "__dataclass_params__")
_MADE_BY_PYTHON = {
    *_COMPARED_AS_TEXT,
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__",
    "__annotate_func__", "__annotations_cache__",
}  # fmt: skip


def _code_shape(code: types.CodeType) -> tuple[object, ...]:
    """A code object without its constants and its location."""
    # Without line numbers: a comment added above a function must not restart a pipeline.
    return (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_exceptiontable,
    )


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # an empty cell: the name is assigned later
        return ()


def _is_value(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__ and kind.__hash__ not in (None, object.__hash__)


def _attributes(function: types.FunctionType) -> dict[str, object]:
    return dict(sorted(function.__dict__.items()))


def _validates(model: type[BaseModel]) -> bool:
    infos = model.__pydantic_decorators__
    return any(getattr(infos, field.name) for field in dataclasses.fields(infos))


def _struct(struct: Any) -> tuple[object, ...]:
    """What the class dictionary of a Struct does not have."""
    config = struct.__struct_config__
    settings = {name: repr(getattr(config, name)) for name in sorted(dir(config)) if not name.startswith("_")}
    return struct.__struct_encode_fields__, struct.__struct_defaults__, settings


def _model(model: type[BaseModel]) -> tuple[object, ...]:
    fields = [
        (name, repr(field.annotation), field.is_required(), field.default, field.default_factory, repr(field.metadata))
        for name, field in model.model_fields.items()
    ]
    functions = {name: value for name, value in vars(model).items() if isinstance(value, types.FunctionType)}
    return fields, functions
