"""Arrow processors, table by table: what they see, what their answers mean, and that a bad record is bad alone."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py import Batch, Record, RecordRefused, Rows, processor
from conduit_py.batch import Span
from conduit_py.errors import ContractBroken, FatalError
from conduit_py.sdk import Result
from conduit_py.stream.arrow import with_tables
from conduit_py.testing.strategies import python_values


def results(function: Callable[..., Any], payloads: Sequence[Any], arrow: Any = True, **more: Any) -> list[Result]:
    """What becomes of records with these payloads, without a pipeline around it."""
    positions = [b"%d" % n for n in range(len(payloads))]
    records = [Record.of(after, position=position) for after, position in zip(payloads, positions, strict=True)]
    batch = Batch.whole(Span("p", "s", 0, positions), records)
    answers: list[Result] = with_tables("node", cast("Any", processor)(arrow=arrow, **more)(function))(batch)
    return answers


def fields(answers: Sequence[Result]) -> list[Any]:
    """The payloads that go on, and what was said of the other records."""
    return [
        answer.payload.after if isinstance(answer, Record) else answer and str(answer)
        for answer in answers
        if not isinstance(answer, list)
    ]


def typed(value: Any) -> Any:
    """The value with the types in it and by its text, for True equals 1 and NaN nothing."""
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value), repr(value)


def unchanged(table: pa.Table) -> pa.Table:
    return table


def doubled(table: pa.Table) -> pa.Table:
    return table.set_column(0, "n", pc.multiply(table["n"], 2))


class TestWhatIsSeen:
    def test_the_fields_are_the_columns_and_a_missing_one_is_null(self) -> None:
        seen = []

        def look(table: pa.Table) -> pa.Table:
            seen.append(table)
            return table

        results(look, [{"a": 1, "b": "x"}, {"a": 2.5, "c": [1]}])

        [table] = seen
        assert table.to_pydict() == {"a": [1.0, 2.5], "b": ["x", None], "c": [None, [1]]}

    def test_a_schema_shows_only_its_columns_in_its_types(self) -> None:
        seen = []

        def look(table: pa.Table) -> pa.Table:
            seen.append(table)
            return table

        schema = pa.schema([("b", pa.large_string()), ("a", pa.int32())])
        results(look, [{"a": 1, "b": "x", "c": object()}, {}], arrow=schema)

        [table] = seen
        assert table.schema == schema
        assert table.to_pydict() == {"b": ["x", None], "a": [1, None]}

    def test_records_without_any_field_are_rows_too(self) -> None:
        def number(table: pa.Table) -> pa.Table:
            return table.append_column("row", pa.array(range(table.num_rows)))

        assert fields(results(number, [{}, {}, {}])) == [{"row": 0}, {"row": 1}, {"row": 2}]

    def test_the_batch_comes_along_where_it_is_asked_for_and_has_a_record_for_each_row(self) -> None:
        def place(table: pa.Table, batch: Batch) -> pa.Table:
            return table.append_column("at", pa.array([record.position for record in batch]))

        answers = results(place, [{"n": 0}, b"raw", {"n": 2}], batch=True)

        assert fields(answers)[::2] == [{"n": 0, "at": b"0"}, {"n": 2, "at": b"2"}]

    def test_values_of_different_types_never_meet_in_one_column(self) -> None:
        seen = []

        def look(table: pa.Table) -> pa.Table:
            seen.append((table["v"].type, table.num_rows))
            return table

        late, zoned = datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)  # noqa: DTZ001
        values = [1, 2, "x", b"x", True, late, zoned, late.date(), None]
        answers = results(look, [{"v": value} for value in values])

        assert fields(answers) == [{"v": value} for value in values]
        assert seen == [
            (pa.int64(), 2),
            (pa.string(), 1),
            (pa.binary(), 1),
            (pa.bool_(), 1),
            (pa.timestamp("us"), 1),
            (pa.timestamp("us", "UTC"), 1),
            (pa.date32(), 2),
        ]


class TestWhatCannotBeSeen:
    """It is refused by name, alone."""

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (2**63, "v does not fit the column's type int64"),
            ({1: 2}, "Arrow has no column for 'v': Expected dict key of type str or bytes"),
            ([1, "x"], "v is 'x', and its column takes integers"),
            ("\ud800", "v does not fit the column's type string"),
            (Decimal("NaN"), "Arrow has no column for 'v'"),
            (object(), "Arrow has no column for 'v'"),
        ],
    )
    def test_what_arrow_has_no_type_for(self, value: Any, reason: str) -> None:
        answers = results(doubled, [{"n": 1}, {"n": 2, "v": value}, {"n": 3}])

        assert isinstance(answers[1], RecordRefused)
        assert str(answers[1]).startswith(reason)
        assert answers[1].suggestion is not None
        assert "@processor(arrow=pa.schema(…))" in answers[1].suggestion
        assert fields(answers)[::2] == [{"n": 2}, {"n": 6}]

    def test_what_does_not_fit_the_schema(self) -> None:
        schema = pa.schema([pa.field("n", pa.int8(), nullable=False)])
        payloads = [{"n": 1}, {"n": 128}, {"n": 1.5}, {"n": "1"}, {}, {"n": 2, "more": 2**70}]

        answers = results(doubled, payloads, arrow=schema)

        assert [answer if isinstance(answer, Record) else str(answer).split(":")[0] for answer in answers[1:5]] == [
            "n does not fit the column's type int8",
            "n is 1.5, and its column takes integers",
            "n is '1', and its column takes integers",
            "n is missing, and its column takes no null",
        ]
        assert fields([answers[0], answers[5]]) == [{"n": 2}, {"n": 4, "more": 2**70}]

    def test_payloads_without_fields(self) -> None:
        answers = results(doubled, [b"raw", None, {"n": 1}])

        assert [(str(answer), answer.suggestion) for answer in answers[:2] if isinstance(answer, RecordRefused)] == [
            (
                "payload.after is raw bytes, so there are no fields for columns",
                'decode it first, for example with the processor "json.decode"',
            ),
            (
                "payload.after is absent, so there are no fields for columns",
                "skip such records with when=lambda record: record.payload.after is not None",
            ),
        ]
        assert fields(answers[2:]) == [{"n": 2}]


class TestWhatIsChanged:
    def test_values_of_columns_that_come_back_as_they_were_are_the_very_same(self) -> None:
        payload = {
            "n": 1,
            "mixed": 1,
            "pair": (1, 2),
            "nested": {"a": 1},
            "nan": float("nan"),
            "id": UUID(int=1),
            "decimal": Decimal("1E+2"),
            "array": bytearray(b"x"),
        }
        other = payload | {"mixed": 0.5, "nested": {"b": None}, "nan": 1, "decimal": Decimal("1.5")}
        before = typed([payload, other])

        answers = results(doubled, [payload, other])

        assert typed(fields(answers)) == typed([payload | {"n": 2}, other | {"n": 2}])
        assert typed([payload | {"n": 1}, other | {"n": 1}]) == before

    def test_looking_at_a_record_does_not_fill_in_what_it_lacks(self) -> None:
        payload = defaultdict(int, {"n": 1})

        assert fields(results(doubled, [payload], arrow=pa.schema([("n", pa.int64()), ("m", pa.int64())]))) == [
            {"n": 2}
        ]

    @pytest.mark.parametrize(("given", "answer"), [(-0.0, 0.0), (float("nan"), 1.0), (1, 2)])
    def test_a_column_that_comes_back_different_is_written(self, given: float, answer: float) -> None:
        def change(table: pa.Table) -> pa.Table:
            return table.set_column(0, "v", pa.array([answer]))

        assert typed(fields(results(change, [{"v": given}]))) == typed([{"v": answer}])

    def test_a_column_that_is_gone_takes_its_field_along_and_a_new_one_is_a_field_for_all(self) -> None:
        def rename(table: pa.Table) -> pa.RecordBatch:
            made = table.drop_columns("old").append_column("new", table["old"])
            [batch] = made.to_batches()
            return batch

        answers = results(rename, [{"old": 1, "kept": 2}, {"kept": 3}])

        assert fields(answers) == [{"kept": 2, "new": 1}, {"kept": 3, "new": None}]

    def test_null_is_no_value_for_a_field_that_the_record_does_not_have(self) -> None:
        def upper(table: pa.Table) -> pa.Table:
            return table.set_column(0, "s", pc.utf8_upper(table["s"]))

        assert fields(results(upper, [{"s": "a"}, {}, {"s": None}])) == [{"s": "A"}, {}, {"s": None}]

    def test_values_come_back_as_pythons_own(self) -> None:
        times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ns", "UTC"))
        spans = pa.array([timedelta(microseconds=1)], pa.duration("ns"))

        def add(table: pa.Table) -> pa.Table:
            made = table.append_column("at", times).append_column("span", spans)
            made = made.append_column("days", pa.array([[date(2026, 1, 1)]]))
            made = made.append_column("half", pa.array([0.5], pa.float16()))
            return made.append_column("all", pa.array([{"at": [0]}], pa.struct([("at", pa.list_(pa.timestamp("ns")))])))

        [answer] = fields(results(add, [{}]))

        assert answer == {
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "span": timedelta(microseconds=1),
            "days": [date(2026, 1, 1)],
            "half": 0.5,
            "all": {"at": [datetime(1970, 1, 1)]},  # noqa: DTZ001
        }
        assert [type(value) for value in answer.values()] == [datetime, timedelta, list, float, dict]

    def test_a_value_that_python_would_cut_short_refuses_its_record_alone(self) -> None:
        def stamp(table: pa.Table) -> pa.Table:
            return table.append_column("at", pc.cast(table["n"], pa.timestamp("ns")))

        answers = results(stamp, [{"n": 1000}, {"n": 1001}])

        assert fields(answers[:1]) == [{"n": 1000, "at": datetime(1970, 1, 1, microsecond=1)}]  # noqa: DTZ001
        assert str(answers[1]).startswith("a record cannot hold the returned values: Casting")

    def test_key_position_operation_and_metadata_stay(self) -> None:
        record = Record.of({"n": 1}, key={"n": 1}, position=b"7")
        record.metadata = {"a": "b"}
        call = with_tables("node", processor(arrow=True)(doubled))

        [answer] = call(Batch.whole(Span("p", "s", 0, [b"7"]), [record]))

        expected = Record.of({"n": 2}, key={"n": 1}, position=b"7")
        expected.metadata = {"a": "b"}
        assert answer == expected


class TestRows:
    def test_a_boolean_array_filters_and_changes_nothing(self) -> None:
        def odd(table: pa.Table) -> pa.ChunkedArray:
            return pc.equal(pc.bit_wise_and(table["n"], 1), 1)

        assert fields(results(odd, [{"n": 1}, {"n": 2}, {"n": None}, {"n": 3}])) == [{"n": 1}, None, None, {"n": 3}]

    def test_rows_change_filter_and_refuse_at_once_and_leave_what_is_refused_as_it_came(self) -> None:
        def sort(table: pa.Table) -> Rows:
            n = table["n"]
            reasons = pc.if_else(pc.greater(n, 3), pc.binary_join_element_wise(pc.cast(n, "string"), "much", " "), None)
            return Rows(doubled(table), keep=pc.not_equal(n, 2), refuse=reasons)

        payloads = [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
        answers = results(sort, payloads)

        assert fields(answers) == [{"n": 2}, None, {"n": 6}, "4 much"]
        assert isinstance(answers[3], RecordRefused)
        assert payloads[3] == {"n": 4}

    def test_a_row_that_is_refused_is_refused_even_if_it_is_not_kept(self) -> None:
        def refuse(table: pa.Table) -> Rows:
            return Rows(keep=pa.array([False, False]), refuse=pa.array(["why", None]))

        assert fields(results(refuse, [{"n": 1}, {"n": 2}])) == ["why", None]

    def test_rows_that_say_nothing_leave_all_as_it_is(self) -> None:
        assert fields(results(lambda table: Rows(refuse=pa.nulls(1)), [{"n": 1}])) == [{"n": 1}]


WAYS = "return a pyarrow.Table or RecordBatch, a boolean array of the rows to keep, or Rows"
HINT = "row i of both tables must be the same record; to filter, return Rows(table, keep=mask)"


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda table: None, f"returned NoneType: {WAYS}"),
        (lambda table: table.to_pylist(), f"returned list: {WAYS}"),
        (lambda table: table["n"], f"returned an array of int64: {WAYS}"),
        (lambda table: Rows("x"), f"returned str: {WAYS}"),
        (lambda table: table.slice(1), f"returned 2 rows for a table of 3 rows: {HINT}"),
        (lambda table: pa.concat_tables([table, table]), f"returned 6 rows for a table of 3 rows: {HINT}"),
        (lambda table: pa.array([True]), f"returned 1 rows for a table of 3 rows: {HINT}"),
        (lambda table: Rows(refuse=pa.array(["x"])), f"returned 1 rows for a table of 3 rows: {HINT}"),
        (
            lambda table: Rows(keep=table["n"]),
            "returned Rows whose `keep` is int64: it must be an Arrow array of booleans",
        ),
        (
            lambda table: Rows(refuse=["x"]),
            "returned Rows whose `refuse` is list: it must be an Arrow array of texts",
        ),
        (lambda table: table.append_column("n", table["n"]), "returned a table with two columns named 'n'"),
    ],
)
def test_an_answer_that_cannot_be_understood_ends_the_run(function: Callable[[pa.Table], Any], rule: str) -> None:
    with pytest.raises(ContractBroken) as raised:
        results(function, [{"n": 1}, {"n": 2}, {"n": 3}])

    assert raised.value.message == f"node: {rule}"


def test_an_error_that_ends_the_run_is_not_looked_for_in_halves() -> None:
    calls = []

    def fail(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        raise FatalError("the licence has expired")

    with pytest.raises(FatalError, match="licence"):
        results(fail, [{"n": 1}, {"n": 2}])
    assert calls == [2]


def test_a_bad_row_is_found_by_halving_and_the_others_are_asked_about_in_order() -> None:
    asked = []

    def parse(table: pa.Table) -> pa.Table:
        asked.append(table["s"].to_pylist())
        return table.append_column("n", pc.cast(table["s"], pa.int64()))

    answers = results(parse, [{"s": str(n) if n != 5 else "five"} for n in range(8)])

    assert [answer["n"] for answer in fields(answers[:5] + answers[6:])] == [0, 1, 2, 3, 4, 6, 7]
    assert isinstance(answers[5], pa.ArrowInvalid)
    assert [len(each) for each in asked] == [8, 4, 4, 2, 1, 1, 2]
    assert [each for each in asked if "five" not in each] == [["0", "1", "2", "3"], ["4"], ["6", "7"]]


PAYLOADS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "\ud800"]) | st.text(max_size=3), python_values(), max_size=3
)


@given(st.lists(PAYLOADS | st.binary() | st.none(), min_size=1, max_size=6))
def test_records_survive_unchanged_or_are_refused_for_what_they_are_alone(payloads: list[Any]) -> None:
    before = [typed(payload) for payload in payloads]
    answers = results(unchanged, payloads)
    alone = [results(unchanged, [payload])[0] for payload in payloads]

    assert [typed(payload) for payload in payloads] == before
    for answer, single, payload in zip(answers, alone, payloads, strict=True):
        if isinstance(answer, Record):
            assert answer.payload.after is payload
            assert isinstance(single, Record)
        else:
            assert isinstance(answer, RecordRefused)
            assert isinstance(single, RecordRefused)


@given(
    st.lists(st.integers(-(2**62), 2**62 - 1) | st.sampled_from([0, 7]) | st.none() | st.text(max_size=2), min_size=1),
    st.booleans(),
)
def test_work_on_columns_is_work_on_each_record(values: list[Any], declared: bool) -> None:
    def double(table: pa.Table) -> Rows:
        n = table["n"]
        if pc.any(pc.equal(n, 7)).as_py():
            raise ValueError("seven")
        return Rows(table.append_column("twice", pc.multiply_checked(n, 2)), keep=pc.not_equal(n, 0))

    schema = pa.schema([("n", pa.int64())]) if declared else True
    answers = results(double, [{"n": value} for value in values], arrow=schema)

    for value, answer in zip(values, answers, strict=True):
        if isinstance(value, str) or value == 7:
            assert isinstance(answer, Exception)
        elif value is None or value == 0:
            assert answer is None
        else:
            assert isinstance(answer, Record)
            assert answer.payload.after == {"n": value, "twice": 2 * value}
