"""FunctionSignature: what a function that becomes a processor says by its signature that it takes and gives."""

import inspect
import typing
from collections.abc import Callable
from types import NoneType, SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from conduit_py.batch import Batch
from conduit_py.errors import Problem
from conduit_py.payload_fit import payload_form, union_members
from conduit_py.payload_type import PayloadType
from conduit_py.payloads import is_payload
from conduit_py.record import Record
from conduit_py.sdk.plugin import Place
from conduit_py.sdk.state import State

_RECORD_NAMES = ("Record", "conduit_py.Record", "sdk.Record")
"""How a hint that cannot be resolved may still name a record: its import may be for type checkers only."""


class FunctionSignature:
    """The first parameter says what the function takes; `state` and `metadata` are further ones, by name.

    Without a hint, or with Record or Any, it takes records. With `batch` it takes a Batch, or a list of payloads. The
    hint of what it returns is `gives`, which only the check of a pipeline reads.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool, by_table: bool) -> None:
        self._function = function
        self._batch = batch
        self._by_table = by_table
        self._unresolved: str | None = None
        self._cannot_carry: str | None = None
        self.payload_type: PayloadType | None = None
        self.takes: Any = dict if by_table else Any
        self.gives: Any = self.takes
        self._results: list[Any] = []
        self._takes_records = False
        self._parameters = _parameters(function)
        hints = self._hints()
        self.takes_metadata = "metadata" in self._parameters[1:]
        self.takes_state = any(hints.get(name) is State for name in self._parameters[1:])
        if self._parameters and not by_table:
            self._look_at(hints.get(self._parameters[0]))
            self._results = _results(hints.get("return"), batch=batch)
            self._takes_records = not batch and hints.get(self._parameters[0]) is Record
            # Without a hint of what it takes it gets records, whatever it says that it returns.
            if self.payload_type is not None and all(map(payload_form, self._results)):
                self.gives = typing.Union[tuple(self._results)] if self._results else Any  # noqa: UP007

    def _hints(self) -> dict[str, Any]:
        function = self._function if inspect.isroutine(self._function) else type(self._function).__call__
        raw = getattr(function, "__annotations__", {})
        # A decorator may return something else than the function whose hints it has copied.
        names = [name for name in raw if name != "return" or not hasattr(function, "__wrapped__")]
        return {name: hint for name in names if (hint := self._hint(function, name, raw[name])) is not None}

    def _hint(self, function: Callable[..., Any], name: str, raw: Any) -> Any:
        """Return one hint, resolved. Each on its own: one that is for type checkers only must not hide the others."""
        try:
            alone = SimpleNamespace(
                __annotations__={name: raw}, __type_params__=getattr(function, "__type_params__", ())
            )
            return get_type_hints(alone, getattr(inspect.unwrap(function), "__globals__", {}))[name]
        except Exception as error:  # a hint is the code of the user, and may raise anything
            first = bool(self._parameters) and name == self._parameters[0]
            if first and isinstance(raw, str) and raw not in (*_RECORD_NAMES, "Batch", "Any"):
                self._unresolved = f"{name}: {raw} ({error})"
            return State if raw == "State" else None

    def _look_at(self, hint: Any) -> None:
        if self._batch:
            if get_origin(hint) is not list:
                return
            (hint,) = get_args(hint)
        members = tuple(each for each in union_members(hint) if each is not NoneType)
        if hint in (None, Any, inspect.Parameter.empty, Batch) or Record in members or isinstance(hint, typing.TypeVar):
            return
        kind = get_origin(hint) or hint
        if isinstance(kind, type) and (is_payload(kind) or is_typeddict(kind)):
            try:
                self.payload_type = PayloadType(hint)
                self.takes = hint
            except TypeError as error:
                self._cannot_carry = f"{_name(hint)} ({error})"
        elif isinstance(kind, type) and issubclass(kind, Record):
            return
        else:
            self._cannot_carry = _name(hint)

    def problems(self, place: Place | None, *, state: bool, names_keys: bool = False) -> list[Problem]:
        """Find functions whose every call would fail, and so refuse every record; and keys of a state that none has."""
        spot = place or (None, None)
        if names_keys and not state:
            what = "names keys of a state, but the function takes none"
            return [Problem("state_keys", what, "write state=True, or leave state_keys out", *spot)]
        function = self._function
        # A call of a generator function runs none of its code, so no error would ever show the mistake.
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return [Problem("", "has a yield, so its calls return no records", "return a list of them", *spot)]
        if self._unresolved is not None:
            what = f"has a type that cannot be found: {self._unresolved}"
            return [Problem("", what, "import the type where the function is defined", *spot)]
        if self._cannot_carry is not None:
            what = f"takes {self._cannot_carry}, which no record can become"
            hint = "take a Record, a dict, bytes, a TypedDict, a Struct, a dataclass or a pydantic model"
            return [Problem("", what, hint, *spot)]
        return [*self._result_problems(spot), *self._call_problems(spot, state=state)]

    def _result_problems(self, spot: tuple[Any, Any]) -> list[Problem]:
        if self._results and all(each in _NEVER_PAYLOADS for each in self._results):
            what = f"returns {' or '.join(map(_name, self._results))}, which no record can carry"
            hint = (
                "return a Record, None or a list" if self.payload_type is None else "return a payload, None or a list"
            )
            return [Problem("", what, f"{hint} of them", *spot)]
        if self._takes_records and self._results and all(map(payload_form, self._results)):
            names = " or ".join(map(_name, self._results))
            what = f"takes a Record and returns {names}, but what takes records returns records"
            return [
                Problem("", what, f"take the payload, as in `{self._parameters[0]}: dict`, or return a Record", *spot)
            ]
        return []

    def _call_problems(self, spot: tuple[Any, Any], *, state: bool) -> list[Problem]:
        takes = ["a table"] if self._by_table else [] if self._batch else ["a record"]
        takes += [*(["a batch"] if self._batch else []), *(["a state"] if state else [])]
        named = {"metadata": "metadata"} if self.takes_metadata else {}
        if named and (self._batch or self._by_table):
            return [Problem("metadata", "is for functions that take one record", "take a Batch instead", *spot)]
        try:
            inspect.signature(self._function).bind(*takes, **named)
        except ValueError:
            return []  # Some functions written in C have no signature.
        except TypeError as error:
            count = "one argument" if len(takes) == 1 else "two arguments"
            what = f"cannot be called with {' and '.join(takes)}: {error}"
            return [Problem("", what, f"it must take {count}", *spot)]
        return []


_NEVER_PAYLOADS = (str, int, float, bool)


def _results(hint: Any, *, batch: bool) -> list[Any]:
    """Return the types of the values that go on: without None, which filters, and without errors, which refuse."""
    if batch:
        hint = get_args(hint)[0] if get_origin(hint) is list else Any
    results: list[Any] = []
    for each in (hint,) if hint is None else union_members(hint):
        results += union_members(get_args(each)[0]) if get_origin(each) is list else [each]
    is_error = [isinstance(each, type) and issubclass(each, BaseException) for each in results]
    return [each for each, error in zip(results, is_error, strict=True) if not error and each not in (None, NoneType)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
