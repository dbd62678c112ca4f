"""Rows: made-up values that are a function of the seed and of the number of the record alone."""

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from conduit_py.sdk import Structured

FieldType: TypeAlias = Literal["index", "int", "float", "string", "bool", "time", "duration"]

BLOCK = 256
"""How many records share one random generator: making one for each would cost more than the record."""


class Rows:
    """The rows of every record, a block at a time: the same for the same seed, whatever was asked before."""

    def __init__(self, fields: Mapping[str, FieldType], seed: int, start: datetime, step: timedelta) -> None:
        self._fields = fields
        self._seed = seed
        self._start = start
        self._step = step

    def block(self, number: int, variant: int = 0) -> list[Structured]:
        """The rows of the records from `number * BLOCK` on. Variants are other rows for the same records."""
        source = self._random(number, f"rows {variant}")
        columns = [self._column(kind, number, _draw(source)) for kind in self._fields.values()]
        names = list(self._fields)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def choices(self, number: int, purpose: str) -> Sequence[int]:
        """A random number for each record of a block, to choose something by."""
        return _draw(self._random(number, purpose))

    def _random(self, number: int, purpose: str) -> random.Random:
        # Seeded by a text, it is the same on every machine and in every process.
        return random.Random(f"{self._seed}:{number}:{purpose}")

    def _column(self, kind: FieldType, number: int, drawn: Sequence[int]) -> list[Any]:
        indices = range(number * BLOCK, (number + 1) * BLOCK)
        if kind == "index":
            return list(indices)
        if kind == "time":
            return [self._start + index * self._step for index in indices]
        return list(map(_MAKERS[kind], drawn))


def _draw(source: random.Random) -> Sequence[int]:
    """64 random bits for each record of a block."""
    return struct.unpack(f"<{BLOCK}Q", source.randbytes(8 * BLOCK))


def _string(drawn: int) -> str:
    return f"{_FIRST[drawn & 7]}-{_SECOND[drawn >> 3 & 7]}-{drawn >> 48:04x}"


_FIRST = ["amber", "bold", "calm", "dark", "early", "fair", "gold", "high"]
_SECOND = ["ant", "bear", "crow", "deer", "elk", "fox", "goat", "hare"]
_MAKERS: dict[str, Callable[[int], Any]] = {
    "int": lambda drawn: drawn >> 33,
    "float": lambda drawn: (drawn >> 11) * 2.0**-53,
    "string": _string,
    "bool": lambda drawn: drawn & 1 == 1,
    "duration": lambda drawn: timedelta(milliseconds=drawn % 3_600_000),
}
