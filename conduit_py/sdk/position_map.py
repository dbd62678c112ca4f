"""Positions of sources with partitions: maps, each made when somebody asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import msgspec

from conduit_py.errors import FatalError
from conduit_py.payloads import LazyPositions


class PositionMap:
    """Positions of a source with partitions: where it is in each of them, as one value."""

    @staticmethod
    def encode(mapping: Mapping[str, int | str]) -> bytes:
        """Return the position for this map. Equal maps give equal bytes."""
        return _MAP_ENCODER.encode(mapping)

    @staticmethod
    def decode(position: bytes) -> dict[str, int | str]:
        """Return the map of a position. Raises FatalError for bytes that `encode` did not make."""
        try:
            return _MAP_DECODER.decode(position)
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

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        steps, before = list(self.steps), self._map_before(len(self))
        for part in later:
            if not isinstance(part, MapPositions) or part.start != before:
                # Not by `super()`, which does not find its class in a dataclass with slots.
                return LazyPositions.join(self, later)
            steps += part.steps
            before = part._map_before(len(part))
        return MapPositions(self.start, steps)


_MAP_ENCODER = msgspec.json.Encoder(order="sorted")
_MAP_DECODER = msgspec.json.Decoder(dict[str, int | str])
