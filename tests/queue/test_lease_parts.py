"""Leases, notices, progress points and cool-downs by themselves (QW-V, QW-M, QW-PO, QW-CD)."""

import itertools
import json

import pytest
import trio
from trio.testing import MockClock

from conduit_py.queue.leased_queue import BodyKind, LeaseTerms, QueueDelivery
from conduit_py.queue.message_body import (
    BEGINNING,
    Announcement,
    Discard,
    MessageBody,
    Unreadable,
    end_point,
    is_end_point,
    offset_of,
    parse_body,
    point_at,
)
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


def _event(name: str, key: str = "data/a.json") -> dict[str, object]:
    return {"eventName": name, "s3": {"bucket": {"name": "logs"}, "object": {"key": key}}}


def _notification(*events: dict[str, object]) -> bytes:
    return json.dumps({"Records": events}).encode()


REMOVED = "ObjectRemoved:Delete"
MESSAGES: list[tuple[str, bytes, BodyKind, MessageBody]] = [
    ("QW-M1", _notification(_event("ObjectCreated:Put")), BodyKind.S3, Announcement(("s3://logs/data/a.json",))),
    ("QW-M3", _notification(_event(REMOVED)), BodyKind.S3, Discard(f"no object was created: {REMOVED}")),
    ("QW-M4", b'{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"logs"}', BodyKind.S3, Discard("a test event")),
    (
        "QW-M5",
        _notification(_event("ObjectCreated:Put", "a%3Ab+c.json")),
        BodyKind.S3,
        Announcement(("s3://logs/a:b c.json",)),
    ),
    (
        "two objects",
        _notification(_event("ObjectCreated:Put", "a"), _event("ObjectCreated:Copy", "b")),
        BodyKind.S3,
        Announcement(("s3://logs/a", "s3://logs/b")),
    ),
    ("path", b" /data/a.json\n", BodyKind.URI, Announcement(("/data/a.json",))),
    ("two addresses", b"/data/a.json\n/data/b.json", BodyKind.URI, Unreadable("the body is not one address")),
    ("binary", b"\xff", BodyKind.URI, Unreadable("the body is not text")),
    ("record", b"\xff", BodyKind.RECORD, Announcement(("m1",))),
]


@pytest.mark.parametrize(("body", "kind", "finding"), [pytest.param(*case[1:], id=case[0]) for case in MESSAGES])
def test_qw_m_what_a_message_is_about(body: bytes, kind: BodyKind, finding: MessageBody) -> None:
    assert parse_body(QueueDelivery("m1", "h1", body), kind) == finding


MALFORMED = [b"", b"{}", b"[]", b'{"Records": []}', b'{"Records": [{"eventName": "ObjectCreated:Put"}]}', b"not json"]


@pytest.mark.parametrize("body", MALFORMED)
def test_qw_m2_a_notification_that_lacks_something_is_unreadable_and_says_what(body: bytes) -> None:
    finding = parse_body(QueueDelivery("m1", "h1", body), BodyKind.S3)

    assert isinstance(finding, Unreadable)
    assert "S3 event notification" in finding.reason


def test_qw_po1_the_beginning_comes_before_every_offset_and_any_end_after_all_of_them() -> None:
    points = [BEGINNING, point_at(0), point_at(1), point_at(10**20 - 1), end_point(), end_point(0), end_point(1)]

    assert all(one < other for one, other in itertools.pairwise(points))
    assert [offset_of(point) for point in points] == [0, 0, 1, 10**20 - 1, 0, 0, 1]
    assert [is_end_point(point) for point in points] == [False] * 4 + [True] * 3
    for wrong in (-1, 10**20):
        with pytest.raises(ValueError, match="an offset must have"):
            point_at(wrong)
    with pytest.raises(ValueError, match="is not a progress point"):
        offset_of(b"12")


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
