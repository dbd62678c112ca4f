"""A record comes out of the store, the journal and Spark exactly as it went in, or is refused by name."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.errors import RecordRefused
from conduit_py.journal.frame import decode_bodies, decode_body, encode_body
from conduit_py.record import Operation, Payload, Record
from conduit_py.record_codec import decode_payload, decode_record, decode_records, encode_all, encode_record
from conduit_py.spark.datasource.publish import pack_output
from conduit_py.spark.engine.outcome import DeliveredRecord, decode_deliveries, encode_outcome
from conduit_py.spark.engine.task import TaskInput, carry_records

ZONES = st.sampled_from([ZoneInfo(name) for name in ("Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "UTC")])
OFFSETS = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone)
ANYWHERE = st.none() | st.just(UTC) | OFFSETS | ZONES
FOLDS = st.sampled_from([0, 1])
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63 - 2, 2**64 + 2) | st.integers(-(2**63) - 2, -(2**63) + 2),
    st.floats(),
    # Any text that Python can hold, lone surrogates included.
    st.text(st.characters(codec=None)),
    st.binary(),
    st.decimals(allow_nan=True),
    st.builds(lambda value, zone, fold: value.replace(tzinfo=zone, fold=fold), st.datetimes(), ANYWHERE, FOLDS),
    st.dates(),
    st.builds(lambda value, zone, fold: value.replace(tzinfo=zone, fold=fold), st.times(), ANYWHERE, FOLDS),
    st.timedeltas(),
    st.uuids(),
    st.binary().map(bytearray),
)
KEYS = st.one_of(
    st.text(st.characters(codec=None)), st.integers(), st.binary(), st.dates(), st.uuids(), st.decimals(allow_nan=False)
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(KEYS, max_size=3),
        st.sets(KEYS, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)
DATA = st.one_of(st.none(), st.binary(), st.dictionaries(st.text(st.characters(codec=None)), VALUES, max_size=4))
RECORDS = st.builds(
    Record,
    st.binary(),
    st.sampled_from(Operation),
    st.dictionaries(st.text(), st.text(), max_size=3),
    DATA,
    st.builds(Payload, DATA, DATA),
)


def through_store(record: Record) -> Record:
    return decode_record(encode_record(record))


def through_journal(record: Record) -> Record:
    decoded = decode_bodies([encode_body(record)], [record.position])
    assert decoded is not None
    assert spelled(decode_body(encode_body(record), record.position)) == spelled(decoded[0])
    return decoded[0]


def through_spark_outcome(record: Record) -> Record:
    (delivery,) = decode_deliveries(encode_outcome([DeliveredRecord([0], encode_record(record))], []))
    return decode_record(delivery.record)


def through_spark_task_input(record: Record) -> Record:
    carried = TaskInput.decode(TaskInput("s", carried=carry_records([record], {})).encode()).carried
    assert carried is not None
    return decode_record(carried.records[0])


def through_spark_task_output(record: Record) -> Record:
    [[decoded]] = pack_output([record], 0, "", None).records()
    return decoded


WAYS = [through_store, through_journal, through_spark_outcome, through_spark_task_input, through_spark_task_output]


def spelled(value: Any) -> Any:
    """The value with everything that `==` does not look at: types, zones, folds, the order of keys, NaN."""
    if isinstance(value, Record):
        payload = value.payload
        return spelled([value.position, value.operation, value.metadata, value.key, payload.before, payload.after])
    if isinstance(value, dict):
        return dict, [(spelled(key), spelled(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [spelled(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), {spelled(item) for item in value}
    return type(value), hex(value) if type(value) is int else repr(value)


@pytest.mark.parametrize("way", WAYS)
@given(record=RECORDS)
def test_invariant_12_every_record_comes_back_as_it_was(way: Callable[[Record], Record], record: Record) -> None:
    assert spelled(way(record)) == spelled(record)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**6000, id="6000 digits"),
        -(2**63) - 1,
        2**64,
        float("inf"),
        float("nan"),
        Decimal("1.10"),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime.fromisoformat("2026-10-25T02:30:00").replace(fold=1),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        time(2, 30, fold=1),
        time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        date.max,
        timedelta.min,
        UUID(int=0),
        bytearray(b"\x00\xff"),
        "half a pair: \ud800",
        {"\ud800": 1},
        {("a", 1): [b"", ()]},
        {Decimal(1): {date.min: UUID(int=1)}},
    ],
)
def test_what_json_would_mangle(way: Callable[[Record], Record], value: Any) -> None:
    assert spelled(way(Record.of({"value": value}))) == spelled(Record.of({"value": value}))


class Money(str):
    """A type of the user's."""


@pytest.mark.parametrize("encode", [encode_record, encode_body])
@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"a": [1, Money("2")]}, r"payload\.after\.a\[1\] is a .*Money"),
        ({"a": {Money("2"): 1}}, r"payload\.after\.a key is a .*Money"),
        ({"b": object()}, r"builtins\.object"),
    ],
)
def test_invariant_12_what_cannot_be_encoded_is_refused_by_name(
    encode: Callable[[Record], bytes], data: dict[str, Any], named: str
) -> None:
    with pytest.raises(RecordRefused, match=named):
        encode(Record.of(data))


def test_metadata_that_is_no_text_is_not_turned_into_some() -> None:
    record = Record.of(b"", position=b"1")
    record.metadata["at"] = Decimal(1)  # type: ignore[assignment]

    assert through_store(record).metadata == {"at": Decimal(1)}


def test_a_record_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless

    with pytest.raises(RecordRefused, match="nested too deeply"):
        encode_record(Record.of(endless))


AT = datetime.fromisoformat("2026-10-25T02:30:00")
OLD_VALUES: dict[str, Any] = {
    "big": 2**70,
    "d": Decimal("1.10"),
    "on": date(2026, 1, 2),
    "td": timedelta(1, 2, 3),
    "u": UUID(int=5),
    "tu": (1, "a"),
    "n": [None, True, 1.5, b"x", {"y": -1}],
}


def old_record(position: bytes, **values: Any) -> Record:
    return Record(position, Operation.UPDATE, {"m": "n"}, {"id": 1}, Payload(b"raw", OLD_VALUES | values))


def test_what_the_store_wrote_in_version_1_is_read() -> None:
    encoded = (
        b"\x01\x96\xc4\x017\xa6update\x81\xa1m\xa1n\x81\xa2id\x01\xc4\x03raw\x8e\xa3big\xc7\x14\x010x400000000000000000"
        b"\xa1d\xd6\x071.10\xa2at\xc7#\x082026-10-25T02:30:00 1 Europe/Berlin\xa2on\xc7\n\t2026-01-02\xa1t\xc7\n\n"
        b"02:30:00 1\xa2td\xc7\x05\x0b1 2 3\xa1u\xc7$\x0c00000000-0000-0000-0000-000000000005\xa2tu\xd6\x03\x92\x01"
        b"\xa1a\xa1s\xd5\x04\x91\x04\xa1f\xd5\x05\x91\x05\xa1k\xd6\x06\x91\x92\x01\x02\xa2ba\xd5\r7a\xa4half\xc7\x03\x02"
        b"\xed\xa0\x80\xa1n\x95\xc0\xc3\xcb?\xf8\x00\x00\x00\x00\x00\x00\xc4\x01x\x81\xa1y\xff"
    )
    record = old_record(
        b"7",
        at=AT.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        t=time(2, 30, fold=1),
        s={4},
        f=frozenset({5}),
        k={1: 2},
        ba=bytearray(b"z"),
        half="\ud800",
    )

    assert decode_record(encoded) == record
    assert decode_record(encoded).payload["at"].tzinfo is ZoneInfo("Europe/Berlin")
    assert decode_records([encoded, encode_record(record)], [b"8", b"9"]) == [
        Record(position, record.operation, record.metadata, record.key, record.payload) for position in (b"8", b"9")
    ]


def test_what_journals_held_before_they_had_a_version_is_read() -> None:
    body = (
        b"\x95\xa6update\x81\xa1m\xa1n\x81\xa2id\x01\xc4\x03raw\x89\xa3big\xc7\x16\x011180591620717411303424\xa1d\xd6\x02"
        b"1.10\xa2at\xc7\x19\x032026-10-25T02:30:00+01:00\xa2on\xc7\n\x042026-01-02\xa1t\xd7\x0502:30:00\xa2td\xc7\x05"
        b"\x061 2 3\xa1u\xc7$\x0700000000-0000-0000-0000-000000000005\xa2tu\xd6\x08\x92\x01\xa1a\xa1n\x95\xc0\xc3\xcb?"
        b"\xf8\x00\x00\x00\x00\x00\x00\xc4\x01x\x81\xa1y\xff"
    )

    assert decode_body(body, b"7") == old_record(
        b"7", at=AT.replace(tzinfo=timezone(timedelta(hours=1))), t=time(2, 30)
    )
    assert decode_bodies([body], [b"7"]) is None


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x01",
        b"text",
        encode_record(Record())[:-1],
        encode_record(Record()).replace(b"\x97\x02", b"\x97\x03"),
        encode_record(Record.of({"at": AT.replace(tzinfo=ZoneInfo("Europe/Berlin"))})).replace(b"Berlin", b"Nowhrr"),
    ],
)
def test_other_bytes_and_later_versions_are_not_taken_for_records(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_record(encoded)
    with pytest.raises(RecordRefused, match="is not a record"):
        decode_body(encoded, b"")
    assert decode_bodies([encoded], [b""]) is None


@given(st.lists(DATA, max_size=4))
def test_payloads_that_are_encoded_together_come_back_as_they_were(payloads: list[Any]) -> None:
    encoded = encode_all(payloads)
    if encoded is not None:
        assert spelled_all(decode_payload(encoded)) == spelled_all(payloads)


def spelled_all(payloads: list[Any]) -> list[Any]:
    return [spelled(Record(payload=Payload(after=payload))) for payload in payloads]


def test_flat_payloads_are_encoded_together_and_what_messagepack_would_change_is_not() -> None:
    flat = [{"n": 1, "text": "é", "x": 0.5, "on": True, "none": None, "raw": b"\x00"}, None, {}, b"bytes"]
    assert encode_all(flat) is not None
    assert encode_all([{"tags": ["a", {"b": 1}]}]) is not None
    for other in (2**64, "\ud800", (1,), Decimal("1.5"), date(2026, 11, 18), {1: 2}, bytearray(b"x")):
        assert encode_all([{"n": 1}, {"other": other}]) is None
    assert encode_all([{"n": 1}, {2: "a key that is no text"}]) is None
    assert encode_all([{"n": 1}, "no payload"]) is None
    assert encode_all([{"n": 1}, ValueError("a result that is an error")]) is None
