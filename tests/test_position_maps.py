"""PositionMap and MapPositions: positions of partitions, made only when somebody asks."""

import random
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.errors import FatalError
from conduit_py.positions import LazyPositions, join_positions
from conduit_py.sdk import EncodedPositions, MapPositions, PositionMap, Positions

maps = st.dictionaries(st.text(max_size=4), st.integers(-(2**60), 2**60) | st.text(max_size=4), max_size=5)
runs = st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 9), max_size=4)), max_size=12)


@given(maps)
def test_a_map_comes_back_as_it_was(mapping: dict[str, int | str]) -> None:
    assert PositionMap.decode(PositionMap.encode(mapping)) == mapping


@given(maps)
def test_equal_maps_have_equal_bytes(mapping: dict[str, int | str]) -> None:
    backwards = dict(reversed(mapping.items()))

    assert PositionMap.encode(mapping) == PositionMap.encode(backwards)


@pytest.mark.parametrize("position", [b"", b"12", b"[]", b'{"a": 1.5}', b'{"a": null}', b"\xff", b"{"])
def test_foreign_bytes_are_refused_with_what_to_do(position: bytes) -> None:
    with pytest.raises(FatalError, match="is not a position of a source with partitions: ") as caught:
        PositionMap.decode(position)

    assert caught.value.suggestion is not None


Runs: TypeAlias = list[tuple[str, list[int | str]]]


def listed(start: dict[str, int | str], runs: Runs) -> list[bytes]:
    current, positions = dict(start), []
    for key, value in ((key, value) for key, values in runs for value in values):
        current[key] = value
        positions.append(PositionMap.encode(current))
    return positions


@given(maps, runs, st.randoms())
def test_every_element_and_slice_is_that_of_the_list(
    start: dict[str, int | str], runs: Runs, rng: random.Random
) -> None:
    expected, positions = listed(start, runs), MapPositions(start, runs)

    assert len(positions) == len(expected)
    assert list(positions) == expected
    indices = list(range(-len(expected), len(expected)))
    rng.shuffle(indices)
    assert [positions[index] for index in indices] == [expected[index] for index in indices]
    for _ in range(5):
        first, last = rng.randint(-25, 25), rng.randint(-25, 25)
        assert list(positions[first:last]) == expected[first:last]
        assert list(positions[first:last:2]) == expected[first:last:2]
    with pytest.raises(IndexError):
        positions[len(expected)]


@given(maps, runs, st.integers(0, 20))
def test_two_reads_join_to_one(start: dict[str, int | str], runs: Runs, cut: int) -> None:
    whole = MapPositions(start, runs)
    earlier, later = whole[:cut], whole[cut:]

    assert isinstance(earlier, MapPositions)
    assert list(earlier.join([later])) == list(whole)


@pytest.mark.parametrize(
    ("runs", "repeats"),
    [
        ([("a", [1]), ("b", [1]), ("a", [2])], False),
        ([("a", [1, 2, 7])], False),
        ([("a", [1, 1])], True),
        ([("a", [2, 1])], True),
        ([("a", [2]), ("a", [1])], True),
        ([("a", [0])], True),
        ([("new", [0])], False),
        ([("a", ["x", "y"])], False),
        ([("a", ["x", "x"])], True),
        ([("a", ["x", 1, 2])], False),
        ([("a", ["x", 2, 1])], True),
    ],
)
def test_a_value_that_does_not_grow_counts_as_repeated(runs: Runs, repeats: bool) -> None:
    assert MapPositions({"a": 0}, runs).repeats is repeats


def test_values_are_encoded_only_when_a_position_is_asked_for_and_never_repeat() -> None:
    asked: list[int] = []

    class Place(msgspec.Struct, frozen=True):
        number: int

        def encode(self) -> bytes:
            asked.append(self.number)
            return b"%d" % self.number

    positions = EncodedPositions([Place(number) for number in range(5)])
    joined = positions[:2].join([positions[2:]])
    alone = [positions.repeats, EncodedPositions([Place(1), Place(1)]).repeats, len(joined), joined[-1]]

    assert alone == [False, True, 5, b"4"]
    assert asked == [4]
    assert joined == [b"0", b"1", b"2", b"3", b"4"]


def test_positions_of_two_files_are_joined_without_being_made() -> None:
    parts = [Positions(b"a:%d", range(3)), Positions(b"b:%d", range(2)), [b"c"]]
    made = [b"a:0", b"a:1", b"a:2", b"b:0", b"b:1", b"c"]
    joined = join_positions(parts)

    assert isinstance(joined, LazyPositions)
    assert (len(joined), list(joined), joined.repeats) == (6, made, False)
    assert [joined[index] for index in range(-6, 6)] == [*made, *made]
    for start in range(7):
        for stop in range(start, 8):
            assert list(joined[start:stop]) == made[start:stop]
    assert joined[::-1] == made[::-1]
    assert list(join_positions([joined, parts[0]])) == [*made, *made[:3]]
    again = join_positions([joined, parts[0]])
    assert isinstance(again, LazyPositions)
    assert again.repeats
    with pytest.raises(IndexError):
        joined[6]
