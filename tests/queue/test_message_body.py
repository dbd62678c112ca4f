"""What messages announce, and progress points (QW-M, QW-PO)."""

import itertools
import json

import pytest

from conduit_py.queue.leased_queue import BodyKind, QueueDelivery
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


@pytest.mark.parametrize(("body", "kind", "expected"), [pytest.param(*case[1:], id=case[0]) for case in MESSAGES])
def test_qw_m_what_a_message_is_about(body: bytes, kind: BodyKind, expected: MessageBody) -> None:
    assert parse_body(QueueDelivery("m1", "h1", body), kind) == expected


MALFORMED = [b"", b"{}", b"[]", b'{"Records": []}', b'{"Records": [{"eventName": "ObjectCreated:Put"}]}', b"not json"]


@pytest.mark.parametrize("body", MALFORMED)
def test_qw_m2_a_notification_that_lacks_something_is_unreadable_and_says_what(body: bytes) -> None:
    expected = parse_body(QueueDelivery("m1", "h1", body), BodyKind.S3)

    assert isinstance(expected, Unreadable)
    assert "S3 event notification" in expected.reason


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
