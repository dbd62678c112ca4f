"""Leases and cool-downs by themselves (QW-V, QW-CD)."""

import pytest
import trio
from trio.testing import MockClock

from conduit_py.queue.leased_queue import LeaseTerms
from conduit_py.queue.work_in_progress import Cooldown, Lease

TERMS = LeaseTerms(
    receive_seconds=20, extension_seconds=5, last_extension_seconds=5, request_seconds=1, margin_seconds=1
)


class Extensions:
    """Notes when a lease was extended, and for how long; answers after `seconds`, or not at all."""

    def __init__(self, *, seconds: float = 0, error: Exception | None = None) -> None:
        self.asked: list[tuple[float, float]] = []
        self._seconds = seconds
        self._error = error

    async def __call__(self, seconds: float) -> None:
        self.asked.append((trio.current_time(), seconds))
        await trio.sleep(self._seconds)
        if self._error is not None:
            raise self._error


async def test_qw_v1_a_lease_is_extended_before_its_deadline_and_once_more_at_the_end(
    autojump_clock: MockClock,
) -> None:
    extensions = Extensions()
    lease = Lease(extensions, 10, TERMS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.keep)
        await trio.sleep(13)
        assert extensions.asked == [(8, 5), (11, 5)]
        lease.finish()

    assert extensions.asked == [(8, 5), (11, 5), (13, 5)]
    assert (lease.deadline, lease.lost) == (18, False)


async def test_the_last_extension_is_not_made_when_the_lease_is_long_enough(autojump_clock: MockClock) -> None:
    extensions = Extensions()
    lease = Lease(extensions, 60, TERMS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.keep)
        await trio.sleep(1)
        lease.finish()

    assert extensions.asked == []
    assert trio.current_time() == 1


async def test_qw_v2_a_lease_that_was_let_go_is_never_extended(autojump_clock: MockClock) -> None:
    extensions = Extensions()
    lease = Lease(extensions, 10, TERMS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.keep)
        await trio.sleep(1)
        lease.release()
        await trio.sleep(100)

    assert extensions.asked == []


@pytest.mark.parametrize("extensions", [Extensions(error=OSError("gone")), Extensions(seconds=2)])
async def test_a_lease_is_lost_when_it_cannot_be_extended_in_time(
    extensions: Extensions, autojump_clock: MockClock
) -> None:
    lease = Lease(extensions, 10, TERMS)

    await lease.keep()

    assert lease.lost
    assert len(extensions.asked) == 1


async def test_a_lease_that_is_too_short_from_the_start_is_asked_for_at_once_or_lost(
    autojump_clock: MockClock,
) -> None:
    short, over = Extensions(), Extensions()

    with trio.move_on_after(0.5):
        await Lease(short, 1.5, TERMS).keep()
    lost = Lease(over, 0, TERMS)
    await lost.keep()

    assert short.asked[0] == (0, 5)
    assert (over.asked, lost.lost) == ([], True)


def test_qw_cd1_a_key_is_ready_once_per_period() -> None:
    cooldown = Cooldown()

    assert cooldown.ready("a", 0, 10)
    assert not cooldown.ready("a", 9.9, 10)
    assert cooldown.ready("b", 9.9, 10)
    assert cooldown.ready("a", 10, 10)


def test_qw_cd2_it_grows_while_the_oldest_still_cools_down_and_forgets_what_is_over() -> None:
    cooldown = Cooldown(size_max=2)
    for key in "abc":
        assert cooldown.ready(key, 0, 10)
    assert not any(cooldown.ready(key, 5, 10) for key in "abc")
    assert len(cooldown) == 3

    assert cooldown.ready("d", 6, 10)
    assert cooldown.ready("e", 20, 10)
    assert len(cooldown) == 1
