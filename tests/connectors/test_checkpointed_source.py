"""CheckpointedSource: exact where the system repeats its order, and never a skipped record where it does not."""

import random
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk import CheckpointedSource, EndOfSource, Fetched, NothingYet, Options, Reading, SourceCheckpoint
from conduit_py.sdk.checkpointed_source import RECENT_MAX
from conduit_py.testing import source_acceptance


class System:
    """Records, and checkpoints before some of them: a checkpoint is the number of records before it.

    `overlap` records before a checkpoint are given again from it. `shuffles` gives them in another order at each start.
    """

    def __init__(self, records: list[Any], checkpoints: set[int], *, overlap: int = 0, shuffles: bool = False) -> None:
        self.records, self.checkpoints = records, checkpoints
        self.overlap, self.shuffles = overlap, shuffles
        self.chunk = 3

    def stream(self, checkpoint: int | None) -> list[Record | SourceCheckpoint]:
        begin = checkpoint or 0
        first = max(0, begin - self.overlap) if checkpoint is not None else 0
        items: list[Record | SourceCheckpoint] = []
        for index in range(first, len(self.records)):
            if index in self.checkpoints and index > begin:
                items.append(SourceCheckpoint(index))
            items.append(Record.of({"v": self.records[index]}))
        if len(self.records) in self.checkpoints:
            items.append(SourceCheckpoint(len(self.records)))
        return self._shuffled(items) if self.shuffles else items

    def _shuffled(self, items: list[Record | SourceCheckpoint]) -> list[Record | SourceCheckpoint]:
        """Change the order between checkpoints: what is after one stays after it."""
        shuffled: list[Record | SourceCheckpoint] = []
        part: list[Record | SourceCheckpoint] = []
        for item in items:
            if isinstance(item, SourceCheckpoint):
                random.shuffle(part)
                shuffled, part = [*shuffled, *part, item], []
            else:
                part.append(item)
        random.shuffle(part)
        return [*shuffled, *part]


class Tap(CheckpointedSource[Options]):
    """Reads a System."""

    system: ClassVar[System]

    def resume(self, checkpoint: Any) -> None:
        self._items = self.system.stream(checkpoint)

    def fetch(self, n: int) -> Fetched:
        if not self._items:
            raise EndOfSource
        taken: list[Record | SourceCheckpoint] = []
        while self._items and sum(isinstance(each, Record) for each in taken) < min(n, self.system.chunk):
            taken.append(self._items.pop(0))
        return taken


class InclusiveTap(Tap):
    """As Tap, for a system that gives records again."""

    inclusive: ClassVar[bool] = True


class AsyncTap(CheckpointedSource[Options]):
    """As Tap, with async methods."""

    system: ClassVar[System]

    async def resume(self, checkpoint: Any) -> None:
        await trio.lowlevel.checkpoint()
        self._items = self.system.stream(checkpoint)

    async def fetch(self, n: int) -> Fetched:
        await trio.lowlevel.checkpoint()
        if not self._items:
            raise EndOfSource
        return [self._items.pop(0)]


def of(kind: type[Any], system: System) -> Any:
    return type(kind.__name__, (kind,), {"system": system})()


def a_tap() -> Any:
    return of(Tap, System(list(range(9)), {2, 5, 9}))


def an_inclusive_tap() -> Any:
    return of(InclusiveTap, System(list(range(9)), {2, 5}, overlap=2))


def an_async_tap() -> Any:
    return of(AsyncTap, System(list(range(9)), {2, 5, 9}))


TestTap = source_acceptance(a_tap)
TestInclusiveTap = source_acceptance(an_inclusive_tap)
TestAsyncTap = source_acceptance(an_async_tap)


def read_all(source: Any, position: bytes | None, n: int = 2) -> list[tuple[bytes, Any]]:
    """Return every position with the value of its record; None for progress."""
    source.open(position)
    found: list[tuple[bytes, Any]] = []
    while True:
        try:
            reading = source.read(n)
        except EndOfSource:
            return found
        assert isinstance(reading, Reading)
        assert len(reading.records) <= n
        found += [(record.position, record.payload["v"]) for record in reading.records]
        if reading.position is not None:
            found.append((reading.position, None))


def values(found: list[tuple[bytes, Any]]) -> list[Any]:
    return [value for _, value in found if value is not None]


systems = st.builds(
    System,
    st.lists(st.integers(0, 3), max_size=14),
    st.sets(st.integers(1, 14), max_size=6),
)


@settings(max_examples=150, deadline=None)
@given(system=systems, chunk=st.integers(1, 5), n=st.integers(1, 4))
def test_every_restart_continues_with_the_next_record_and_the_same_positions(
    system: System, chunk: int, n: int
) -> None:
    system.chunk = chunk
    whole = read_all(of(Tap, system), None, n)
    assert values(whole) == system.records
    assert len({position for position, _ in whole}) == len(whole)

    for index, (position, _) in enumerate(whole):
        assert values(read_all(of(Tap, system), position, n)) == values(whole[index + 1 :])
        records = [item for item in whole[index + 1 :] if item[1] is not None]
        again = [item for item in read_all(of(Tap, system), position, n) if item[1] is not None]
        assert again == records


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(0, 14),
    checkpoints=st.sets(st.integers(1, 14), max_size=6),
    overlap=st.integers(0, 5),
    n=st.integers(1, 4),
)
def test_records_given_again_at_a_checkpoint_are_dropped(
    count: int, checkpoints: set[int], overlap: int, n: int
) -> None:
    system = System(list(range(count)), checkpoints, overlap=overlap)
    whole = read_all(of(InclusiveTap, system), None, n)
    assert values(whole) == system.records

    for index, (position, _) in enumerate(whole):
        assert values(read_all(of(InclusiveTap, system), position, n)) == values(whole[index + 1 :])


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(0, 12),
    checkpoints=st.sets(st.integers(1, 12), max_size=4),
    inclusive=st.booleans(),
    overlap=st.integers(0, 4),
    seed=st.integers(0, 10**6),
)
def test_with_an_unstable_order_records_are_repeated_and_none_is_skipped(
    count: int, checkpoints: set[int], inclusive: bool, overlap: int, seed: int
) -> None:
    random.seed(seed)
    system = System(list(range(count)), checkpoints, overlap=overlap if inclusive else 0, shuffles=True)
    kind = InclusiveTap if inclusive else Tap
    whole = read_all(of(kind, system), None)
    assert sorted(values(whole)) == system.records

    for index, (position, _) in enumerate(whole):
        again = read_all(of(kind, system), position)
        assert set(values(again)) >= set(values(whole[index + 1 :]))


def test_fewer_records_than_were_delivered_are_given_again_at_once() -> None:
    system = System([1, 2, 3], set())
    position = read_all(of(Tap, system), None)[-1][0]
    system.records = [1, 2]
    source = of(Tap, system)

    assert values(read_all(source, position)) == [1, 2]


def test_records_do_not_wait_for_more_when_there_is_nothing_now() -> None:
    class Quiet(Tap):
        def fetch(self, n: int) -> Fetched:
            if not self._items:
                raise NothingYet
            return super().fetch(n)

    system = System([1, 2, 3], set())
    position = read_all(of(Tap, system), None)[-1][0]
    system.records = [7]
    source = of(Quiet, system)
    source.open(position)

    assert [record.payload["v"] for record in source.read(5).records] == [7]
    with pytest.raises(NothingYet):
        source.read(5)


def test_a_position_stays_small_however_many_records_follow_a_checkpoint() -> None:
    found = read_all(of(InclusiveTap, System(list(range(500)), {100})), None)

    assert max(len(position) for position, _ in found) < 100 + 20 * RECENT_MAX


async def test_an_async_source_reads_the_same() -> None:
    system = System([1, 2, 3, 4], {2, 4})
    source = of(AsyncTap, system)
    await source.open(None)
    found: list[tuple[bytes, Any]] = []
    while True:
        try:
            reading = await source.read(2)
        except EndOfSource:
            break
        found += [(record.position, record.payload["v"]) for record in reading.records]
        if reading.position is not None:
            found.append((reading.position, None))

    # It fetches one by one, so every checkpoint is progress. The positions of records are the same.
    assert [each for each in found if each[1]] == [each for each in read_all(of(Tap, system), None) if each[1]]


@pytest.mark.parametrize("position", [b"", b"12", b"{}", b'{"checkpoint": 1, "count": "x"}', b"\xff"])
def test_a_foreign_position_is_refused_with_what_to_do(position: bytes) -> None:
    with pytest.raises(FatalError, match="is not a position of a source with checkpoints: ") as caught:
        of(Tap, System([], set())).check_position(position)

    assert caught.value.suggestion is not None
