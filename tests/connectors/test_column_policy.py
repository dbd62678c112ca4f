"""`on_new_field` and `on_type`: the same words at every destination; what one cannot do is a problem of `check`."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import delta, parquet, spark
from conduit_connectors.column_policy import COLUMNS_MAX, wider_type
from conduit_connectors.policy_options import PolicyOptions
from conduit_connectors.spark.rows import Fields
from conduit_connectors.sql.row import TableOptions
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.config.load import load_file
from conduit_py.sdk.arrow import ARROW_ERRORS

WITH_POLICIES = [delta.Destination, parquet.Destination, spark.Destination, spark.Jdbc, spark.Sink]


def columns_of(path: Path) -> list[dict[str, str]]:
    """The columns of each file of a folder, in the order of writing."""
    return [
        {field.name: str(field.type) for field in pq.read_schema(file)} for file in sorted(path.glob("part-*.parquet"))
    ]


def rows_of(path: Path) -> list[Any]:
    return [row for file in sorted(path.glob("part-*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens Parquet destinations on one folder."""
    made: list[parquet.Destination] = []

    def open_one(**options: Any) -> parquet.Destination:
        declared = parquet.Destination(path=tmp_path / "lake", **options)
        assert declared.problems == []
        made.append(declared.fresh())
        made[-1].open()
        return made[-1]

    yield open_one
    for each in made:
        each.teardown()


@pytest.mark.parametrize("connector", WITH_POLICIES, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_the_words_are_those_of_the_sql_destinations(connector: Any) -> None:
    fields, sql = connector.options_model.model_fields, TableOptions.model_fields

    for name in ("on_new_field", "on_type"):
        assert (fields[name].annotation, fields[name].default) == (sql[name].annotation, sql[name].default)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            delta.Destination(path="t", on_type="widen"),
            ("on_type", "writing all of its files again", '"refuse" or "text"'),
        ),
        (spark.Destination(path="t", on_new_field="add"), ("on_new_field", "does not alter", '"refuse" or "ignore"')),
        (spark.Jdbc(url="jdbc:x", table="t", on_type="widen"), ("on_type", "does not alter", '"refuse" or "text"')),
        (spark.Sink(table="t", on_new_field="add"), ("on_new_field", "does not alter", '"refuse" or "ignore"')),
    ],
)
def test_what_a_destination_cannot_do_is_a_problem_with_the_reason(made: Any, problem: tuple[str, str, str]) -> None:
    [found] = made.problems

    assert found.path == problem[0]
    assert problem[1] in found.message
    assert problem[2] in found.suggestion


class TestOldSpelling:
    def test_it_works_and_is_reported_by_check(self, tmp_path: Path, opened: Any) -> None:
        file = tmp_path / "p.yaml"
        file.write_text(
            'version: "2.2"\npipelines:\n  - id: p\n    connectors:\n'
            "      - {id: in, type: source, plugin: generator, settings: {count: 1}}\n"
            "      - {id: lake, type: destination, plugin: parquet, settings: {path: lake, drift: ignore}}\n"
        )
        [warning] = load_file(file).warnings
        destination = opened(drift="ignore", columns={"n": "int64"})

        assert destination.write(batch_of({"n": 1, "more": 2})) == {}
        assert warning.path == "p.lake.drift"
        assert warning.message.startswith('deprecated: write on_new_field="ignore"')

    def test_both_spellings_are_a_problem(self) -> None:
        [problem] = parquet.Destination(path="lake", drift="ignore", on_new_field="refuse").problems

        assert "both are given" in problem.message


class TestParquet:
    def test_a_new_field_gets_a_column_in_the_files_from_then_on(self, tmp_path: Path, opened: Any) -> None:
        destination = opened(on_new_field="add", columns={"n": "int64"})
        assert destination.write(batch_of({"n": 1})) == {}
        assert destination.write(batch_of({"n": 2, "name": "a", "cost": Decimal("1.5"), "none": None})) == {}
        destination.flush()
        successor = opened(on_new_field="add", columns={"n": "int64"})
        assert successor.write(batch_of({"n": 3, "cost": Decimal("123456.7")})) == {}
        successor.flush()

        wide = {"n": "int64", "name": "string", "cost": "decimal128(38, 1)"}
        assert columns_of(tmp_path / "lake") == [{"n": "int64"}, wide, wide]
        both = pa.unify_schemas([pq.read_schema(file) for file in (tmp_path / "lake").glob("part-*.parquet")])
        assert set(both.names) == set(wide)
        assert [row["n"] for row in rows_of(tmp_path / "lake")] == [1, 2, 3]

    def test_a_field_that_can_have_no_column_refuses_its_record_alone(self, opened: Any) -> None:
        destination = opened(on_new_field="add", columns={"n": "int64"})
        hostile = [{"n": 1, "": 1}, {"n": 1, "N": 1}, {"n": 1, "\ud800": 1}, {"n": 1, "e": {}}, {"n": 1, "x": object()}]
        refused = destination.write(batch_of({"n": 0}, *hostile, {"n": 2}))

        assert sorted(refused) == [1, 2, 3, 4, 5]
        assert "differ only in case" in refused[2]

    def test_records_cannot_make_columns_without_end(self, tmp_path: Path, opened: Any) -> None:
        destination = opened(on_new_field="add", columns={f"c{n}": "int64" for n in range(COLUMNS_MAX)})

        assert "which is the most" in destination.write(batch_of({"c1": 1, "one_more": 1}))[0]

    def test_ignored_fields_are_logged_once(self, opened: Any, caplog: pytest.LogCaptureFixture) -> None:
        destination = opened(on_new_field="ignore", columns={"n": "int64"})
        for _ in range(2):
            assert destination.write(batch_of({"n": 1, "more": 2})) == {}
        destination.teardown()

        assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["the", "ignored"]

    def test_a_column_is_widened_in_the_files_from_then_on(self, tmp_path: Path, opened: Any) -> None:
        columns = {"n": "int16", "f": "float", "d": "decimal(4, 2)"}
        destination = opened(on_type="widen", columns=columns)
        first, second = {"n": 1, "f": 0.5, "d": Decimal("1.50")}, {"n": 2**40, "f": 2**30 + 1, "d": Decimal("1234.567")}
        assert destination.write(batch_of(first)) == {}
        refused = destination.write(batch_of({"n": 0.5}, second, {"n": "text"}, {"n": 2**70}, {"n": True}))
        destination.flush()

        assert sorted(refused) == [0, 2, 3, 4]
        assert rows_of(tmp_path / "lake") == [first, second]
        assert [each["n"] for each in columns_of(tmp_path / "lake")] == ["int16", "int64"]
        assert opened(on_type="widen", columns=columns).write(batch_of(second)) == {}

    def test_without_a_policy_nothing_changes(self, opened: Any) -> None:
        destination = opened(columns={"n": "int16"})

        assert sorted(destination.write(batch_of({"n": 2**20}, {"n": 1, "more": 1}, {"n": 1}))) == [0, 1]


VALUES = {"b": True, "i": 7, "f": 0.1, "d": date(2026, 1, 2), "o": {"a": [1]}, "x": Decimal("1.50"), "t": "text"}
TEXTS = {"b": "true", "i": "7", "f": "0.1", "d": "2026-01-02", "o": '{"a":[1]}', "x": "1.50", "t": "text"}


def test_text_makes_text_of_values_in_columns_of_text_and_refuses_the_others(tmp_path: Path, opened: Any) -> None:
    columns = dict.fromkeys(VALUES, "string") | {"n": "int64"}
    made = delta.Destination(path=str(tmp_path / "table"), columns=columns | {"n": "long"}, on_type="text").fresh()
    made.open()
    fields = Fields(
        pa.schema([(name, pa.string()) for name in VALUES] + [("n", pa.int64())]), PolicyOptions(on_type="text")
    )
    unfit = [{"n": "text"}, {"t": b"bytes"}, {"t": {"deep": float("nan")}}, {"i": 10**5000}]
    batch = batch_of(VALUES, *unfit)

    for destination in (made, opened(columns=columns, on_type="text")):
        assert sorted(destination.write(batch)) == [1, 2, 3, 4]
        destination.flush()
    row = TEXTS | {"n": None}
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist() == [row]
    assert rows_of(tmp_path / "lake") == [row]
    assert fields.fit([VALUES]).batch.to_pylist() == [row]


KINDS = st.sampled_from(
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float32()),
        *(pa.float64(), pa.decimal128(4, 2), pa.decimal128(38, 0), pa.string(), pa.bool_(), pa.date32()),
    ]
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.decimals() | st.booleans() | st.text(max_size=3)


@given(kind=KINDS, old=NUMBERS, new=NUMBERS)
def test_a_wider_type_holds_the_value_and_everything_that_the_column_held(kind: Any, old: Any, new: Any) -> None:
    wider = wider_type(kind, new)
    if wider is None:
        return
    assert wider != kind
    [held] = pa.array([new], wider).to_pylist()
    assert held == new
    try:
        [before] = pa.array([old], kind).to_pylist()
    except ARROW_ERRORS:
        return
    # A short float is the same number as a long one; whether it is that of `old` was decided when it was written.
    assert pa.array([before], kind).cast(wider).to_pylist() == [before] or before != before
