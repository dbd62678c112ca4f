"""Clocks, producers and message ids: the UUID vectors of reference B.1, and what a publisher hands out."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.journal.message_id import (
    FLAGS_MAX,
    NO_ID,
    TICK,
    Clock,
    Flag,
    MessageUuid,
    ProducerId,
    clock_at,
    unix_seconds,
)
from conduit_py.journal.transactions import AckIntent, Publisher

PRODUCER = ProducerId(b"\x01\x02\x03\x04\x05\x06")
SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("clock", "flags", "text"),
    [
        (160, 0, "0000000a-0000-1000-8000-010203040506"),
        (320, 1, "00000014-0000-1000-8001-010203040506"),
        (480, 2, "0000001e-0000-1000-8002-010203040506"),
        (0x1B21DD2138140000, 0, "13814000-1dd2-11b2-8000-010203040506"),
        (0x1E9CC5F83FC2F950, 682, "83fc2f95-cc5f-11e9-82aa-010203040506"),
        (0x1E9CC5F83FC2F81F, 1023, "83fc2f81-cc5f-11e9-bfff-010203040506"),
        (2**64 - 1, 1, "ffffffff-ffff-1fff-bc01-010203040506"),
    ],
)
def test_ids_are_uuids_of_version_1(clock: int, flags: int, text: str) -> None:
    id = MessageUuid(PRODUCER, clock, flags)

    assert str(id) == text
    assert MessageUuid.from_bytes(uuid.UUID(text).bytes) == id
    assert uuid.UUID(text).version == 1


@given(st.binary(min_size=6, max_size=6), st.integers(0, 2**64 - 1), st.integers(0, FLAGS_MAX))
def test_every_id_survives_its_sixteen_bytes(producer: bytes, clock: int, flags: int) -> None:
    id = MessageUuid(ProducerId(producer), clock, flags)

    assert MessageUuid.from_bytes(id.to_bytes()) == id


def test_the_id_of_those_who_opted_out_is_sixteen_zeros() -> None:
    assert NO_ID.to_bytes() == bytes(16)
    assert MessageUuid.from_bytes(bytes(16)) is NO_ID
    assert NO_ID.later(3) is NO_ID


def test_unknown_flags_are_read_as_outside() -> None:
    assert [MessageUuid(PRODUCER, 1, flags).flag for flags in (0, 1, 2, 3, 0x100)] == [
        Flag.OUTSIDE,
        Flag.CONTINUE,
        Flag.ACK,
        Flag.OUTSIDE,
        Flag.OUTSIDE,
    ]


def test_more_than_ten_bits_of_flags_are_an_error_of_the_program() -> None:
    with pytest.raises(AssertionError, match="1024"):
        MessageUuid(PRODUCER, 1, 1024).to_bytes()


def test_the_clock_counts_hundreds_of_nanoseconds_and_never_goes_back() -> None:
    assert clock_at(12 * SECOND + 300) == clock_at(12 * SECOND + 399) < clock_at(12 * SECOND + 400)
    clock = Clock()
    clock.update(12 * SECOND + 300)
    assert clock.tick() == clock_at(12 * SECOND + 1300)
    clock.update(11 * SECOND)
    assert clock.value == clock_at(12 * SECOND + 1300)
    clock.update(12 * SECOND + 5000)
    assert clock.value == clock_at(12 * SECOND + 5000)


def test_the_clock_of_the_vectors_is_two_ticks_after_its_instant() -> None:
    clock = Clock()
    clock.update(1567304621 * SECOND + 981273734)

    assert clock.tick(2) + TICK == clock.value == 0x1E9CC5F83FC2F950
    assert clock_at(0) == 0x1B21DD2138140000
    assert unix_seconds(clock_at(1567304621 * SECOND)) == 1567304621


def test_a_thousand_producers_are_a_thousand_ids_with_the_multicast_bit() -> None:
    producers = {ProducerId.random() for _ in range(1000)}

    assert len(producers) == 1000
    assert all(len(each) == 6 and each[0] & 1 for each in producers)


def test_ack_intents_are_one_per_journal_in_the_order_of_first_use() -> None:
    publisher = Publisher(PRODUCER, Clock())

    assert [publisher.in_transaction("j1").clock, publisher.in_transaction("j2").clock] == [160, 320]
    assert publisher.ack_intents() == [
        AckIntent("j1", MessageUuid(PRODUCER, 480, Flag.ACK)),
        AckIntent("j2", MessageUuid(PRODUCER, 640, Flag.ACK)),
    ]
    assert [publisher.in_transaction("j3").clock, publisher.in_transaction("j1").clock] == [800, 960]
    assert [(intent.journal, intent.id.clock) for intent in publisher.ack_intents()] == [("j3", 1120), ("j1", 1280)]
    assert publisher.ack_intents() == []


def test_a_batch_takes_an_id_for_each_of_its_messages() -> None:
    publisher = Publisher(PRODUCER, Clock())

    batch = publisher.in_transaction("j", 1000)
    (ack,) = publisher.ack_intents()

    assert batch.later(999).clock == 160_000
    assert ack.id.clock == 160_160


def test_a_private_clock_follows_the_wall_clock() -> None:
    publisher = Publisher()

    first, second = publisher.outside_transaction(), publisher.outside_transaction()

    assert first.flags == Flag.OUTSIDE
    assert second.clock - first.clock >= TICK
    assert unix_seconds(first.clock) > 1_700_000_000
