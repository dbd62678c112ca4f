"""A packed record comes out exactly as it went in, or is refused by name."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.errors import RecordRefused
from conduit_py.record import Operation, Payload, Record
from conduit_py.record_codec import decode_record, encode_record

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
KEYS = st.one_of(st.text(), st.integers(), st.binary(), st.dates())
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
DATA = st.one_of(st.none(), st.binary(), st.dictionaries(st.text(), VALUES, max_size=4))


def typed(value: Any) -> Any:
    """The value with the types in it, for True equals 1 and 1.0."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value), value


@given(st.binary(), st.sampled_from(Operation), st.dictionaries(st.text(), st.text(), max_size=3), DATA, DATA, DATA)
def test_every_record_comes_back_as_it_was(
    position: bytes, operation: Operation, metadata: dict[str, str], key: Any, before: Any, after: Any
) -> None:
    record = Record(position, operation, metadata, key, Payload(before, after))
    again = decode_record(encode_record(record))

    assert again == record
    assert typed([again.key, again.payload.before, again.payload.after]) == typed([key, before, after])


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**6000, id="6000 digits"),
        -(2**63) - 1,
        2**64,
        float("inf"),
        Decimal("1.10"),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        time(2, 30, fold=1),
        date.max,
        timedelta.min,
        UUID(int=0),
        bytearray(b"\x00\xff"),
        "half a pair: \ud800",
        {("a", 1): [b"", ()]},
    ],
)
def test_what_json_would_mangle(value: Any) -> None:
    again = decode_record(encode_record(Record.of({"value": value}))).payload["value"]

    assert again == value
    assert type(again) is type(value)
    assert getattr(again, "fold", None) == getattr(value, "fold", None)
    assert str(getattr(again, "tzinfo", None)) == str(getattr(value, "tzinfo", None))


def test_nan_stays_nan() -> None:
    again = decode_record(encode_record(Record.of({"value": float("nan")}))).payload["value"]

    assert again != again


class Money(str):
    """A type of the user's."""


@pytest.mark.parametrize(
    ("data", "named"),
    [({"a": [1, Money("2")]}, r"payload\.after\.a\[1\] is a .*Money"), ({"b": object()}, r"builtins\.object")],
)
def test_what_cannot_be_kept_is_refused_by_name(data: dict[str, Any], named: str) -> None:
    with pytest.raises(RecordRefused, match=named):
        encode_record(Record.of(data))


def test_a_record_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless

    with pytest.raises(RecordRefused, match="nested too deeply"):
        encode_record(Record.of(endless))


def test_bytes_of_another_version_are_not_believed() -> None:
    with pytest.raises(ValueError, match="version 02"):
        decode_record(b"\x02" + encode_record(Record())[1:])
