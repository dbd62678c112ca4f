"""Registers: a few labels with values that a journal keeps, and that decide who may append to it.

An append can require values and can change them, in one step with its messages. So a writer that changes a
register fences every writer that still checks for the old value, in any process.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

Registers: TypeAlias = dict[str, tuple[str, ...]]
"""Label → its values, sorted, without repetition."""

Labels: TypeAlias = Mapping[str, str | Iterable[str]]
"""Registers as a caller writes them: a value alone, or several."""


class Selector(NamedTuple):
    """Holds when every label of `include` has one of the values given, and no label of `exclude` has.

    No values, or the value "", stand for any.
    """

    include: Labels = MappingProxyType({})
    exclude: Labels = MappingProxyType({})

    def __str__(self) -> str:
        wanted = [f"{label} is {_show(values)}" for label, values in _normal(self.include).items()]
        unwanted = [f"{label} is not {_show(values)}" for label, values in _normal(self.exclude).items()]
        return ", ".join(wanted + unwanted)


def holds(registers: Registers, check: Selector) -> bool:
    """Whether a check passes. In a journal without registers every check passes."""
    if not registers:
        return True
    included = all(_has(registers, label, values) for label, values in _normal(check.include).items())
    return included and not any(_has(registers, label, values) for label, values in _normal(check.exclude).items())


def apply_changes(registers: Registers, union: Labels, subtract: Labels) -> Registers:
    """The registers after a change. A label is removed only if its values are exactly those in `subtract`."""
    gone = _normal(subtract)
    kept = {label: values for label, values in registers.items() if gone.get(label) != values}
    return dict(sorted({**kept, **_normal(union)}.items()))


def encode_registers(registers: Registers) -> bytes:
    return msgspec.json.encode(registers)


decode_registers = msgspec.json.Decoder(Registers).decode


def _normal(labels: Labels) -> Registers:
    # One form for equal values: changes are found, and subtracted, by comparison.
    return {
        label: (values,) if isinstance(values, str) else tuple(sorted(set(values))) for label, values in labels.items()
    }


def _has(registers: Registers, label: str, values: tuple[str, ...]) -> bool:
    present = registers.get(label)
    if present is None:
        return False
    return not values or "" in values or not set(values).isdisjoint(present)


def _show(values: tuple[str, ...]) -> str:
    return " or ".join(map(repr, values)) if values and "" not in values else "anything"
