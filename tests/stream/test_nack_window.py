"""The nack window, against the ring buffer that defines it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.stream.settler import NackWindow


class Ring:
    """The definition: a ring of the last outcomes, all acks at first, frozen by the first nack too many."""

    def __init__(self, size: int, threshold: int) -> None:
        size = 1 if size and threshold == 0 else size
        self.ring = [False] * size
        self.threshold = threshold
        self.cursor = 0
        self.frozen = False

    def outcome(self, nacked: bool) -> bool:
        if not self.ring:
            return True
        if self.frozen:
            return not nacked
        self.cursor = (self.cursor + 1) % len(self.ring)
        self.ring[self.cursor] = nacked
        self.frozen = sum(self.ring) > self.threshold
        return not (nacked and self.frozen)


@given(st.integers(0, 6), st.integers(0, 5), st.lists(st.booleans(), max_size=40))
def test_it_allows_exactly_the_nacks_that_the_ring_allows(size: int, threshold: int, outcomes: list[bool]) -> None:
    window, ring = NackWindow(size, threshold), Ring(size, threshold)
    for nacked in outcomes:
        if nacked:
            assert window.nack() == ring.outcome(True)
        else:
            window.ack()
            ring.outcome(False)


def test_size_0_allows_every_nack() -> None:
    window = NackWindow(0, 0)

    assert all(window.nack() for _ in range(1000))


@pytest.mark.parametrize(("size", "threshold"), [(1, 0), (2, 0), (2, 1), (100, 0), (100, 99)])
def test_it_trips_at_the_threshold_refills_with_acks_trips_again_and_stays_tripped(size: int, threshold: int) -> None:
    window = NackWindow(size, threshold)

    assert [window.nack() for _ in range(threshold)] == [True] * threshold
    window.ack(size)
    assert [window.nack() for _ in range(threshold)] == [True] * threshold
    assert not window.nack()
    window.ack(10 * size)
    assert not window.nack()


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_without_a_size_at_most_95_of_the_first_100_may_be_nacks(outcomes: list[bool]) -> None:
    window = NackWindow(None, 0)
    allowed = True
    for number, nacked in enumerate(outcomes, 1):
        if not nacked:
            window.ack()
            continue
        allowed = allowed and (number > 100 or sum(outcomes[:number]) <= 95)
        assert window.nack() == allowed


def test_without_a_size_the_96th_of_the_first_100_is_refused_and_later_ones_are_not() -> None:
    wrong, sound = NackWindow(None, 0), NackWindow(None, 0)
    sound.ack(5)

    assert [wrong.nack() for _ in range(97)] == [True] * 95 + [False] * 2
    assert all(sound.nack() for _ in range(1000))
