"""Payloads with columns: joined, cut and copied, they give the records that a list of records would."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conduit_py.batch import Batch, Span
from conduit_py.payloads import Columns, LazyColumn, Payloads, join
from conduit_py.positions import Positions
from conduit_py.record import Operation, Record


def make_metadata(number: int) -> dict[str, str]:
    return {"number": str(number)}


@st.composite
def reads(draw: st.DrawFn) -> list[Payloads]:
    """Reads in a row, each with the columns that it happens to have."""
    found, first = [], 0
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        numbers = list(range(first, first + size))
        lazy, plain = LazyColumn(numbers, make_metadata), [make_metadata(number) for number in numbers]
        columns = Columns(
            keys=draw(st.sampled_from([None, [b"%d" % number for number in numbers]])),
            metadata=draw(st.sampled_from([None, lazy, plain])),
            operations=draw(st.sampled_from([None, [Operation.UPDATE] * size])),
        )
        values = [b"%d" % number for number in numbers]
        found.append(Payloads(values, Positions(b"%d", numbers), bytes, draw(st.sampled_from([None, columns]))))
        first += size
    return found


def batch_of(payloads: Any) -> Batch:
    return Batch.whole(Span("p", "s", 0, payloads.positions), payloads)


@given(reads())
def test_reads_are_joined_without_records(several: list[Payloads]) -> None:
    expected = [record for each in several for record in each]
    joined = join(several)

    assert isinstance(joined, Payloads)
    assert list(joined) == expected
    assert joined.kind is bytes


def test_lazy_columns_stay_lazy_when_they_are_joined() -> None:
    made: list[int] = []

    def make(number: int) -> dict[str, str]:
        made.append(number)
        return make_metadata(number)

    several = [
        Payloads([b"x"], Positions(b"%d", [number]), bytes, Columns(metadata=LazyColumn([number], make)))
        for number in range(3)
    ]
    batch = batch_of(join(several))
    copy = batch.copy(deep=True)
    kept = batch.without([1], [b"x", b"x"], bytes)
    assert made == []

    assert [record.metadata["number"] for record in kept.records] == ["0", "2"]
    assert batch.record(1).metadata == {"number": "1"}
    assert made == [0, 2, 1]
    assert [record.metadata["number"] for record in copy.records] == ["0", "1", "2"]


@given(reads(), st.data())
def test_a_batch_that_is_cut_has_the_columns_of_what_is_left(several: list[Payloads], data: st.DataObject) -> None:
    payloads = join(several)
    expected: list[Record] = list(payloads)
    indices = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1)))
    gone = [index for index in range(len(expected)) if index not in indices]

    batch = batch_of(payloads)
    assert batch.select(indices).records == [expected[index] for index in indices]
    rest = batch.without(gone, [batch.payloads[index] for index in indices], bytes)
    assert rest.records == [expected[index] for index in indices]


def test_who_changes_what_a_lazy_column_made_changes_nothing_for_others() -> None:
    columns = Columns(metadata=LazyColumn([1], make_metadata))
    batch = batch_of(Payloads([b"x"], Positions(b"%d", [1]), bytes, columns))
    copy = batch.copy(deep=False)
    batch.records[0].metadata["number"] = "changed"

    assert copy.records[0].metadata == {"number": "1"}
