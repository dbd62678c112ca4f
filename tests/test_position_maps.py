"""PositionMap and MapPositions: positions of partitions, made only when somebody asks."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.errors import FatalError
from conduit_py.sdk import MapPositions, PositionMap

maps = st.dictionaries(st.text(max_size=4), st.integers(-(2**60), 2**60) | st.text(max_size=4), max_size=5)
steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=20)


@given(maps)
def test_a_map_comes_back_as_it_was(mapping: dict[str, int | str]) -> None:
    assert PositionMap.decode(PositionMap.encode(mapping)) == mapping


@given(maps)
def test_equal_maps_have_equal_bytes(mapping: dict[str, int | str]) -> None:
    backwards = dict(reversed(mapping.items()))

    assert PositionMap.encode(mapping) == PositionMap.encode(backwards)


@pytest.mark.parametrize("position", [b"", b"12", b"[]", b'{"a": 1.5}', b'{"a": null}', b"\xff", b"{"])
def test_foreign_bytes_are_refused_with_what_to_do(position: bytes) -> None:
    with pytest.raises(FatalError, match="is not a map of partitions") as caught:
        PositionMap.decode(position)

    assert caught.value.suggestion is not None


def listed(start: dict[str, int | str], steps: list[tuple[str, int | str]]) -> list[bytes]:
    current, positions = dict(start), []
    for key, value in steps:
        current[key] = value
        positions.append(PositionMap.encode(current))
    return positions


@given(maps, steps, st.randoms())
def test_every_element_and_slice_is_that_of_the_list(
    start: dict[str, int | str], steps: list[tuple[str, int | str]], rng: random.Random
) -> None:
    expected, positions = listed(start, steps), MapPositions(start, steps)

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


@given(maps, steps, st.integers(0, 20))
def test_two_reads_join_to_one(start: dict[str, int | str], steps: list[tuple[str, int | str]], cut: int) -> None:
    whole = MapPositions(start, steps)
    earlier, later = whole[:cut], whole[cut:]

    assert isinstance(earlier, MapPositions)
    assert list(earlier.join([later])) == list(whole)


@pytest.mark.parametrize(
    ("steps", "repeats"),
    [
        ([("a", 1), ("b", 1), ("a", 2)], False),
        ([("a", 1), ("a", 1)], True),
        ([("a", 2), ("a", 1)], True),
        ([("a", 0)], True),
        ([("new", 0)], False),
        ([("a", "x"), ("a", "y")], False),
        ([("a", "x"), ("a", "x")], True),
    ],
)
def test_a_value_that_does_not_grow_counts_as_repeated(steps: list[tuple[str, int | str]], repeats: bool) -> None:
    assert MapPositions({"a": 0}, steps).repeats is repeats
