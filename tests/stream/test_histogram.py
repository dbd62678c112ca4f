"""Histogram: buckets that hold their upper bound, and sums over runs."""

from hypothesis import given
from hypothesis import strategies as st

from conduit_py.stream.meter import Histogram, empty

values = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000)))


def filled(observed: list[tuple[float, int]]) -> Histogram:
    histogram = empty((1.0, 10.0))()
    for value, count in observed:
        histogram.observe(value, count)
    return histogram


def test_a_bucket_holds_its_upper_bound_and_the_last_one_everything_above() -> None:
    histogram = filled([(0.5, 1), (1.0, 1), (1.1, 5), (10.0, 1), (11.0, 2)])

    assert histogram.counts == [2, 6, 2]
    assert histogram.count == 10
    assert histogram.total == 0.5 + 1 + 5.5 + 10 + 22


@given(values, values)
def test_a_sum_is_what_one_histogram_would_have_seen_and_leaves_both_alone(
    ours: list[tuple[float, int]], theirs: list[tuple[float, int]]
) -> None:
    one, other = filled(ours), filled(theirs)
    total = one.plus(other)

    assert total.counts == filled(ours + theirs).counts
    assert abs(total.total - filled(ours + theirs).total) <= 1e-9 * max(1, total.total)
    assert one == filled(ours)
    total.observe(5)
    assert other == filled(theirs)


def test_a_sum_with_nothing_is_a_copy() -> None:
    histogram = filled([(3, 2)])
    copied = histogram.plus(None)
    histogram.observe(3)

    assert copied.count == 2
