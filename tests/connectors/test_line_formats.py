"""Lines by the batch: what is written and refused is what the records alone would give."""

import math
from typing import Any

import msgspec
import pytest
from builders import batch_of
from conduit_connectors.line_formats import Encode, encode_json_lines, encode_opencdc_lines
from hypothesis import given
from hypothesis import strategies as st

from conduit_py import Payload, Record
from conduit_py.batch import Batch
from conduit_py.payloads import kind_of
from conduit_py.record import Operation
from conduit_py.sdk import Columns

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "null", 'a"null', "\n", "é", "\ud800"]),
    st.binary(max_size=3),
    st.just({1, 2}),
    st.just(object()),
)
FIELDS = st.dictionaries(st.sampled_from(["a", "null", "é"]), VALUES | st.lists(VALUES, max_size=2), max_size=3)
DATA = st.none() | st.binary(max_size=4) | FIELDS
RECORDS = st.builds(
    Record,
    position=st.binary(max_size=4),
    operation=st.sampled_from(Operation),
    metadata=st.dictionaries(st.sampled_from(["x", "null"]), st.sampled_from(["", "null"]), max_size=2),
    key=DATA,
    payload=st.builds(Payload, DATA, DATA),
)


@pytest.mark.parametrize("encode", [encode_json_lines, encode_opencdc_lines])
@given(records=st.lists(RECORDS, max_size=6))
def test_a_batch_is_encoded_as_its_records_are(encode: Encode, records: list[Record]) -> None:
    alone = [encode(batch_of(record.copy())) for record in records]

    together = encode(batch_of(*[record.copy() for record in records]))

    assert together.text == b"".join(each.text for each in alone)
    assert together.refused == {index: each.refused[0] for index, each in enumerate(alone) if each.refused}


@pytest.mark.parametrize("encode", [encode_json_lines, encode_opencdc_lines])
@given(
    records=st.lists(RECORDS, max_size=6), kept=st.sets(st.sampled_from(["keys", "metadata", "operations", "befores"]))
)
def test_a_batch_of_payloads_is_encoded_as_one_of_records(
    encode: Encode, records: list[Record], kept: set[str]
) -> None:
    """Parts that all records have by default may be in no column."""
    parts: dict[str, list[Any]] = {
        "keys": [record.key for record in records],
        "metadata": [record.metadata for record in records],
        "operations": [record.operation for record in records],
        "befores": [record.payload.before for record in records],
    }
    columns = Columns(**{name: parts[name] for name in kept})
    span = batch_of(*[{}] * len(records)).span
    afters = [record.payload.after for record in records]

    def batch() -> Batch:
        kind = kind_of(set(map(type, afters)))
        return Batch.of_payloads(span, list(afters), range(len(records)), None, kind, columns if kept else None)

    assert encode(batch()) == encode(Batch.whole(span, batch().copy(deep=True).records))


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf], {"deep": math.nan}])
@pytest.mark.parametrize("absent", [None, {"a": 1}])
def test_a_number_that_json_does_not_have_refuses_its_record_alone(value: Any, absent: Any) -> None:
    """The encoder writes null for it, and absent parts of a record are null too."""
    good = Record(key=b"k", payload=Payload(absent, {"n": 1}))
    bad = Record(key=b"k", payload=Payload(absent, {"n": value}))

    encoded = encode_opencdc_lines(batch_of(good, bad, good.copy()))

    assert list(encoded.refused) == [1]
    assert encoded.text == 2 * (good.to_json() + b"\n")


@pytest.mark.parametrize("raw", [b'"\0"', b'"a"'])
def test_a_number_that_json_does_not_have_is_found_behind_whatever_is_copied_as_it_is(raw: bytes) -> None:
    """The quick search for nulls ends at a zero byte, which an encoder writes only for a value that is JSON already."""
    encoded = encode_json_lines(batch_of(Record(payload=Payload(None, {"raw": msgspec.Raw(raw), "n": math.nan}))))

    assert (encoded.text, list(encoded.refused)) == (b"", [0])
