"""Positions of one read, made on demand: most never are, because a commit needs only the last one.

`PositionHistory` has those of the past, with their times: a source can be set back to one of them.
"""

import dataclasses
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import eq, lt
from typing import Protocol, overload

import msgspec

from conduit_py.errors import FatalError

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SPACINGS = ((2 * HOUR, MINUTE), (DAY, 10 * MINUTE), (7 * DAY, HOUR))
"""Up to which age points are kept, and how far apart."""
STARTS_MAX = 32
BYTES_MAX = 64 * 1024


def foreign_position(position: bytes, source: str = "this source", reason: object = None) -> FatalError:
    """Return the error for a stored position that this source did not make, with the one advice for all sources."""
    return FatalError(
        f"{position[:100]!r} is not a position of {source}" + (f": {reason}" if reason is not None else ""),
        suggestion="another connector stored it: give this source another id, or reset its position",
    )


class LazyPositions(Sequence[bytes]):
    """The positions of one read. Each is made on demand."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """True if two of them may be equal."""

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        """Return these positions and those of later reads as one sequence, which makes them as late as these do."""
        return _ChainedPositions([self, *later])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


def join_positions(reads: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return the positions of several reads as one sequence, which makes them as late as these do."""
    first, *later = reads
    if isinstance(first, LazyPositions):
        return first.join(later) if later else first
    return list(chain.from_iterable(reads))


@dataclasses.dataclass(slots=True, eq=False)
class Positions(LazyPositions):
    """Positions that differ only in a number. Each is made on demand.

    `template` has one `%d`, as in `b"offset:%d"`.
    """

    template: bytes
    numbers: Sequence[int]
    ascending: bool = False
    """True if every number is larger than the one before. Then no position can be repeated."""

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
    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last of them."""
        return self.template % self.numbers[0], self.template % self.numbers[-1]

    @property
    def repeats(self) -> bool:
        # Made from one template, so they differ exactly if their numbers do. A range never repeats one.
        distinct = self.ascending or isinstance(self.numbers, range)
        return not distinct and len(set(self.numbers)) < len(self.numbers)

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        alike = [part for part in later if isinstance(part, Positions) and part.template == self.template]
        if len(alike) < len(later):
            # Not by `super()`, which does not find its class in a dataclass with slots.
            return LazyPositions.join(self, later)
        parts = [self, *alike]
        ascending = all(part.ascending for part in parts)
        ascending = ascending and all(one.numbers[-1] < other.numbers[0] for one, other in pairwise(parts))
        return Positions(self.template, _join_numbers([part.numbers for part in parts]), ascending)


def _join_numbers(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    ranges = [part for part in parts if isinstance(part, range) and part.step == 1]
    # Rows of a table have consecutive numbers, for which no list is built.
    if len(ranges) == len(parts) and all(one.stop == other.start for one, other in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    return [number for part in parts for number in part]


class _ChainedPositions(LazyPositions):
    """Positions of several reads that have no template in common, such as those of two files."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Sequence[bytes]]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            firsts = zip([0, *self._ends], self._parts, strict=False)
            parts = [part[max(0, start - first) : max(0, stop - first)] for first, part in firsts]
            return _ChainedPositions(parts) if step == 1 else list(self)[index]
        number = range(len(self))[index]
        place = bisect_right(self._ends, number)
        return self._parts[place][number - (self._ends[place - 1] if place else 0)]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._parts)

    @property
    def repeats(self) -> bool:
        return len(set(self)) < len(self)

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        return _ChainedPositions([*self._parts, *later])


class PositionValue(Protocol):
    """A position before it is bytes. It is never changed, and equal values have equal bytes."""

    def encode(self) -> bytes: ...


class EncodedPositions(LazyPositions):
    """Positions that are values of the source's own, in the order of its log. Each is encoded on demand."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[PositionValue]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "EncodedPositions": ...
    def __getitem__(self, index: int | slice) -> "bytes | EncodedPositions":
        return EncodedPositions(self.values[index]) if isinstance(index, slice) else self.values[index].encode()

    def __iter__(self) -> Iterator[bytes]:
        return (value.encode() for value in self.values)

    @property
    def repeats(self) -> bool:
        # In the order of a log, equal ones are neighbours. To compare all with all would cost as much as to encode.
        return any(map(eq, self.values, self.values[1:]))

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        alike = [part for part in later if isinstance(part, EncodedPositions)]
        if len(alike) < len(later):
            return super().join(later)
        return EncodedPositions([value for part in (self, *alike) for value in part.values])


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
            raise foreign_position(position, "a source with partitions", error) from error


_MAP_ENCODER = msgspec.json.Encoder(order="sorted")
_MAP_DECODER = msgspec.json.Decoder(dict[str, int | str])


class MapPositions(LazyPositions):
    """Positions that are maps. Each is the one before it, with one step: the new value of one key.

    `start` is the map before the first step. The steps are given as runs: a key, and the values that it takes one after
    the other. Partitions are read in long runs, and a position costs no more memory than its value. Whole numbers
    must grow for each key.
    """

    def __init__(self, start: Mapping[str, int | str], runs: Sequence[tuple[str, Sequence[int | str]]]) -> None:
        self.start = start
        self.runs = [run for run in runs if run[1]]
        self._ends = list(accumulate(len(values) for _, values in self.runs))
        self._last: tuple[int, Mapping[str, int | str]] = (0, start)
        """The index of a run and the map before it: the next run is mostly asked for next."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, stop, step)]
            return self if start == 0 and stop == len(self) else self._cut(start, stop)
        return PositionMap.encode(self._map_before(range(1, len(self) + 1)[index]))

    def __iter__(self) -> Iterator[bytes]:
        current = dict(self.start)
        for key, values in self.runs:
            for value in values:
                current[key] = value
                yield PositionMap.encode(current)

    def _cut(self, start: int, stop: int) -> "MapPositions":
        begins = [0, *self._ends]
        runs = [
            (key, values[max(start - begin, 0) : max(stop - begin, 0)])
            for begin, (key, values) in zip(begins, self.runs, strict=False)
        ]
        return MapPositions(self._map_before(start), runs)

    def _map_before(self, index: int) -> Mapping[str, int | str]:
        """Return the map after the first `index` steps."""
        run = bisect_right(self._ends, index)
        last = self._last
        begun, before = last if last[0] <= run else (0, self.start)
        current = {**before, **{key: values[-1] for key, values in self.runs[begun:run]}}
        # Replaced, never changed: destinations in several threads may ask.
        self._last = run, current
        if steps := index - (self._ends[run - 1] if run else 0):
            key, values = self.runs[run]
            return {**current, key: values[steps - 1]}
        return current

    @property
    def repeats(self) -> bool:
        current = dict(self.start)
        for key, values in self.runs:
            if (key in current and not _grow([current[key], values[0]])) or not _grow(values):
                return True
            current[key] = values[-1]
        return False

    def join(self, later: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
        runs, before = list(self.runs), self._map_before(len(self))
        for part in later:
            if not isinstance(part, MapPositions) or part.start != before:
                return super().join(later)
            runs += part.runs
            before = part._map_before(len(part))
        return MapPositions(self.start, runs)


def _grow(values: Sequence[int | str]) -> bool:
    """Return True if each is larger than the one before it; of two that are not both whole numbers: another one."""
    if isinstance(values, range):
        return values.step > 0
    if set(map(type, values)) == {int}:
        return all(map(lt, values, values[1:]))
    return all(
        one < other if isinstance(one, int) and isinstance(other, int) else one != other
        for one, other in pairwise(values)
    )


class HistoryPoint(msgspec.Struct, frozen=True):
    """A position that was durable at a time. None is the beginning: nothing had been settled yet."""

    at: float
    position: bytes | None
    start: bool = False
    """Whether a run began here."""


class PositionHistory(msgspec.Struct, frozen=True):
    """The points of one source, the oldest first: few, and fewer the older they are.

    One a minute for the last hours, then one in ten minutes, then one an hour, for a week; and where the
    last runs began. However long positions are, it stays small.
    """

    points: list[HistoryPoint] = []

    def encode(self) -> bytes:
        return _HISTORY_ENCODER.encode(self)

    def with_points(self, *points: HistoryPoint) -> "PositionHistory":
        """Return the history with further points, without those too old at the time of the last one, or too many."""
        everything = sorted((*self.points, *points), key=lambda point: point.at)
        # Starts are limited by number, not by age: a run may last longer than any spacing.
        kept = [point for point in everything if point.start][-STARTS_MAX:]
        # Of the others the first of each stretch of time, whose length goes by its age.
        stretches: dict[tuple[float, float], HistoryPoint] = {}
        for point in everything:
            spacing = next((spacing for age, spacing in SPACINGS if points[-1].at - point.at <= age), None)
            if not point.start and spacing is not None:
                stretches.setdefault((spacing, point.at // spacing), point)
        kept += stretches.values()
        newest_first = sorted(kept, key=lambda point: point.at)[::-1]
        # Some sources have positions of many kilobytes, and the history is written with a commit.
        sizes = accumulate(32 + len(point.position or b"") for point in newest_first)
        fitting = max(1, sum(size <= BYTES_MAX for size in sizes))
        return PositionHistory(newest_first[:fitting][::-1])

    def at(self, moment: float) -> HistoryPoint | None:
        """The last point that is not after the moment: everything settled since then is read again from it."""
        return next((point for point in reversed(self.points) if point.at <= moment), None)


_HISTORY_ENCODER = msgspec.msgpack.Encoder()
