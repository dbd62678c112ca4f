"""Positions in columns, made when somebody asks for one: from a template and numbers, or maps by partition."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import msgspec

from conduit_py.errors import FatalError


class LazyPositions(Sequence[bytes]):
    """The positions of one read. Most are never made: a commit needs only the last one."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """True if two of them may be equal."""

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        """Return these positions and the later ones as one sequence."""
        return [*self, *later]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


@dataclass(slots=True, eq=False)
class Positions(LazyPositions):
    """Positions that differ only in a number. Each is made when somebody asks for it.

    `template` has one `%d`, as in `b"offset:%d"`.
    """

    template: bytes
    numbers: Sequence[int]
    ascending: bool = False
    """True if every number is larger than the one before. Then nobody looks for repeated positions."""

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Positions": ...
    def __getitem__(self, index: int | slice) -> "bytes | Positions":
        if isinstance(index, slice):
            return Positions(self.template, self.numbers[index], self.ascending)
        return self.template % self.numbers[index]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.template.__mod__, self.numbers)

    @property
    def repeats(self) -> bool:
        # Made from one template, so they differ exactly if their numbers do. A range never repeats one.
        distinct = self.ascending or isinstance(self.numbers, range)
        return not distinct and len(set(self.numbers)) < len(self.numbers)

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        if isinstance(later, Positions) and later.template == self.template:
            ascending = self.ascending and later.ascending and self.numbers[-1] < later.numbers[0]
            return Positions(self.template, [*self.numbers, *later.numbers], ascending)
        return [*self, *later]


class PositionMap:
    """Positions of a source with partitions: where it is in each of them, as one value."""

    @staticmethod
    def encode(mapping: Mapping[str, int | str]) -> bytes:
        """Return the position for this map. Equal maps give equal bytes."""
        return _ENCODER.encode(mapping)

    @staticmethod
    def decode(position: bytes) -> dict[str, int | str]:
        """Return the map of a position. Raises FatalError for bytes that `encode` did not make."""
        try:
            return _DECODER.decode(position)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FatalError(
                f"the stored position {position[:80]!r} is not a map of partitions: {error}",
                suggestion="another connector stored it; give this source another id, or set its position",
            ) from error


@dataclass(slots=True, eq=False)
class MapPositions(LazyPositions):
    """Positions that are maps. Each is the one before it, with one step: the new value of one key.

    `start` is the map before the first step. A position is made when somebody asks for it, so each costs no more memory
    than its step. Whole numbers must grow for each key.
    """

    start: Mapping[str, int | str]
    steps: Sequence[tuple[str, int | str]]
    _last: tuple[int, Mapping[str, int | str]] | None = field(default=None, init=False)
    """The map that was made last and its index: the next one is mostly asked for next."""

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, stop, step)]
            if start == 0 and stop == len(self):
                return self
            return MapPositions(self._map_before(start), self.steps[start:stop])
        return PositionMap.encode(self._map_before(range(1, len(self) + 1)[index]))

    def __iter__(self) -> Iterator[bytes]:
        current = dict(self.start)
        for key, value in self.steps:
            current[key] = value
            yield PositionMap.encode(current)

    def _map_before(self, index: int) -> Mapping[str, int | str]:
        last = self._last
        begin, before = last if last is not None and last[0] <= index else (0, self.start)
        current = {**before}
        current.update(self.steps[begin:index])
        # Replaced, never changed: destinations in several threads may ask.
        self._last = index, current
        return current

    @property
    def repeats(self) -> bool:
        current = dict(self.start)
        for key, value in self.steps:
            before = current.get(key)
            grows = before < value if isinstance(before, int) and isinstance(value, int) else before != value
            if not grows:
                return True
            current[key] = value
        return False

    def join(self, later: Sequence[bytes]) -> Sequence[bytes]:
        if isinstance(later, MapPositions) and later.start == self._map_before(len(self)):
            return MapPositions(self.start, [*self.steps, *later.steps])
        return [*self, *later]


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(dict[str, int | str])
