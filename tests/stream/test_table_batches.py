"""A batch that holds an Arrow table does what a batch of its rows does, and makes no row while nobody asks for one."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py import Batch, DeadLetter, DeadLetters, Destination, Pipeline, Record, Rows, Source, processor, run, sdk
from conduit_py.batch import Span
from conduit_py.payloads import Columns, Payloads, estimated_bytes, join
from conduit_py.positions import Positions
from conduit_py.record import Operation
from conduit_py.sdk.arrow import check_values, python_rows
from conduit_py.status import Status

NUMBERS = pa.schema([("n", pa.int64())])


class Tables(sdk.SourceConnector[sdk.Options]):
    """Reads the rows of a table, as tables or as records. Positions are numbers of rows, from 1."""

    table: pa.Table
    as_rows: bool = False
    acked: list[bytes]

    def open(self, position: bytes | None) -> None:
        self._next = int(position or b"0")

    def read(self, n: int) -> sdk.Records:
        part = self.table.slice(self._next, n)
        if not part.num_rows:
            raise sdk.EndOfSource
        first, self._next = self._next + 1, self._next + part.num_rows
        positions = Positions(b"%d", range(first, self._next + 1), ascending=True)
        read = Payloads.of_table(part, positions)
        return [*read] if self.as_rows else read

    def ack(self, positions: Sequence[bytes]) -> None:
        self.acked += positions


class Sink(sdk.DestinationConnector[sdk.Options]):
    """Notes whether it was given tables, and every row with its position."""

    tables: list[bool]
    written: list[tuple[bytes, Any]]
    refuses: int | None = None

    def write(self, batch: Batch) -> dict[int, str]:
        self.tables.append(batch.table is not None)
        rows = batch.payloads if batch.table is None else python_rows(batch.table)
        refused = {index: "not here" for index, row in enumerate(rows) if row.get("n", 0) == self.refuses}
        pairs = enumerate(zip(batch.positions, rows, strict=True))
        self.written += [pair for index, pair in pairs if index not in refused]
        return refused


class Seen:
    """One run over a table, and all that others can see of it."""

    def __init__(
        self,
        table: pa.Table,
        *processors: Any,
        as_rows: bool = False,
        batch_size: int = 4,
        refuses: int | None = None,
        sinks: int = 1,
    ) -> None:
        source = type("SomeTables", (Tables,), {"table": table, "as_rows": as_rows, "acked": []})()
        made = [
            type("SomeSink", (Sink,), {"tables": [], "written": [], "refuses": refuses})() for _ in range(max(sinks, 1))
        ]
        self.letters: list[DeadLetter] = []
        pipeline = Pipeline(
            "p",
            sources=[Source("in", source, batch_size=batch_size)],
            processors=processors,
            destinations=[Destination(f"out{number}", sink) for number, sink in enumerate(made)],
            dead_letters=DeadLetters(self.letters.append),
        )
        self.outcome = run(pipeline)
        self.acked = source.acked
        self.tables = made[0].tables
        self.written = made[0].written
        self.all_written = [sink.written for sink in made]

    @property
    def rows(self) -> list[Any]:
        return [row for _, row in self.written]

    def visible(self) -> Any:
        letters = [(letter.record, letter.error, letter.node) for letter in self.letters]
        counts = {node: (each.records, each.filtered, each.refused) for node, each in self.outcome.counts.nodes.items()}
        return self.outcome.status, self.written, letters, self.acked, counts


@processor(arrow=NUMBERS)
def double(table: pa.Table) -> pa.Table:
    return table.set_column(0, "n", pc.multiply(table["n"], 2))


@processor(arrow=NUMBERS)
def without_threes(table: pa.Table) -> pa.BooleanArray:
    return pc.not_equal(pc.multiply(pc.divide(table["n"], 3), 3), table["n"])


@processor(arrow=NUMBERS)
def refuse_large(table: pa.Table) -> Rows:
    large = pc.greater(table["n"], 12)
    return Rows(keep=pc.not_equal(table["n"], 4), refuse=pc.if_else(large, "too large", None))


@processor(arrow=True)
def more(table: pa.Table) -> pa.Table:
    return table.drop_columns(["text"]).append_column("more", pc.utf8_upper(table["text"])) if has(table) else table


def has(table: pa.Table) -> bool:
    return "text" in table.column_names and pa.types.is_string(table["text"].type)


@processor(arrow=NUMBERS)
def fail_at_seven(table: pa.Table) -> pa.Table:
    if 7 in table["n"].to_pylist():
        raise ValueError("seven")
    return table


@processor(arrow=True, batch=True)
def mark(table: pa.Table, batch: Batch) -> pa.Table:
    for record in batch.records:
        record.metadata["marked"] = "yes"
    return table


@processor(arrow=True, batch=True)
def note(table: pa.Table, batch: Batch) -> pa.Table:
    for row in batch.payloads:
        row["noted"] = True
    return table


@processor(arrow=NUMBERS, workers=2)
def half(table: pa.Table) -> pa.Table:
    return table.set_column(0, "n", pc.divide(table["n"], 2))


@processor(arrow=NUMBERS)
def beyond_python(table: pa.Table) -> pa.Table:
    nanoseconds = pc.cast(pc.if_else(pc.equal(table["n"], 5), 1, 1000), pa.timestamp("ns"))
    return table.append_column("at", nanoseconds)


@processor
def by_record(record: Record) -> Record | None:
    record.payload["seen"] = True
    return None if record.payload["n"] == 2 else record


@processor
def by_dict(row: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]]:
    return [{**row, "half": n} for n in range(2)] if row.get("n") == 6 else row


EVERY = [double, without_threes, refuse_large, more, fail_at_seven, mark, note, half, beyond_python, by_record, by_dict]


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "text": pa.array([f"t{n}" for n in values])})


def test_no_row_is_made_between_a_source_and_a_destination_of_tables() -> None:
    seen = Seen(numbers(*range(10)), double, without_threes, more)

    assert seen.tables == [True] * 3
    assert seen.rows == [{"n": 2 * n, "more": f"T{n}"} for n in range(10) if 2 * n % 3]
    assert [position for position, _ in seen.written] == [b"%d" % (n + 1) for n in range(10) if 2 * n % 3]
    assert seen.acked == [b"%d" % (n + 1) for n in range(10)]
    assert seen.outcome.counts.filtered == 4


@given(
    values=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    chain=st.lists(st.sampled_from(EVERY), max_size=4, unique_by=id),
    batch_size=st.integers(1, 8),
    refuses=st.integers(0, 20),
)
@settings(max_examples=60, deadline=None)
def test_a_table_and_its_rows_cannot_be_distinguished(
    values: list[int], chain: list[Any], batch_size: int, refuses: int
) -> None:
    in_table = Seen(numbers(*values), *chain, batch_size=batch_size, refuses=refuses)
    in_rows = Seen(numbers(*values), *chain, batch_size=batch_size, refuses=refuses, as_rows=True)

    assert in_table.visible() == in_rows.visible()
    assert in_table.outcome.status is Status.COMPLETED


def test_a_dead_letter_has_the_row_as_it_came_to_the_node() -> None:
    seen = Seen(numbers(1, 20, 3), double, refuse_large, refuses=6)

    assert seen.rows == [{"n": 2, "text": "t1"}]
    assert [(letter.record.payload.after, letter.error) for letter in seen.letters] == [
        ({"n": 40, "text": "t20"}, "too large"),
        ({"n": 6, "text": "t3"}, "not here"),
    ]
    assert [letter.record.position for letter in seen.letters] == [b"2", b"3"]


def test_a_value_that_no_record_can_hold_is_refused_alone() -> None:
    seen = Seen(numbers(4, 5, 6), beyond_python)

    assert [row["n"] for row in seen.rows] == [4, 6]
    assert [letter.record.payload["n"] for letter in seen.letters] == [5]
    assert "a record cannot hold the returned values" in seen.letters[0].error


def test_branches_do_not_see_the_changes_of_others() -> None:
    seen = Seen(numbers(1, 2, 3), double, sinks=3)

    assert (
        seen.all_written
        == [[(b"1", {"n": 2, "text": "t1"}), (b"2", {"n": 4, "text": "t2"}), (b"3", {"n": 6, "text": "t3"})]] * 3
    )


def test_a_processor_that_only_looks_at_its_table_need_not_be_a_function() -> None:
    class Score(sdk.Processor[sdk.Options]):
        table_schema = NUMBERS

        def process_table(self, table: pa.Table, batch: Batch) -> pa.Table:
            assert len(batch) == table.num_rows
            return table.append_column("score", pc.add(table["n"], 0.5))

    seen = Seen(numbers(1, 2), Score())

    assert seen.tables == [True]
    assert seen.rows == [{"n": 1, "text": "t1", "score": 1.5}, {"n": 2, "text": "t2", "score": 2.5}]


@pytest.mark.parametrize(
    ("kind", "into", "is_table"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.large_string(), pa.string(), True),
        (pa.float32(), pa.float64(), True),
        (pa.int64(), pa.string(), False),
    ],
)
def test_a_column_that_its_schema_can_hold_is_cast(kind: pa.DataType, into: pa.DataType, is_table: bool) -> None:
    got: list[pa.DataType] = []

    @processor(arrow=pa.schema([("x", into)]))
    def look(table: pa.Table) -> pa.Table:
        got.append(table["x"].type)
        return table

    table = pa.table({"x": pa.array([1, 2], pa.int64()).cast(kind)})
    seen = Seen(table, look)

    assert seen.tables == ([True] if is_table else [])
    assert got == ([into] if is_table else [])
    # What is returned unchanged stays as it was read.
    assert seen.rows == (table.to_pylist() if is_table else [])
    assert len(seen.letters) == (0 if is_table else 2)


def test_a_missing_column_is_no_field_of_the_rows() -> None:
    @processor(arrow=pa.schema([("n", pa.int64()), ("absent", pa.string())]))
    def look(table: pa.Table) -> pa.Table:
        return table

    assert Seen(numbers(1), look).rows == [{"n": 1, "text": "t1"}]


class TestBatch:
    """The three forms of a batch."""

    def made(self, columns: Columns | None = None) -> Batch:
        positions = Positions(b"%d", range(10, 14))
        read = Payloads.of_table(numbers(0, 1, 2, 3), positions, columns)
        return Batch.of_payloads(Span("p", "s", 10, positions), read.payloads, range(10, 14), None, dict, columns)

    def test_it_holds_no_table_after_its_rows_were_asked_for(self) -> None:
        by_payloads, by_records = self.made(), self.made()
        by_payloads.payloads[1]["n"] = 7
        by_records.records[1].payload["n"] = 7

        assert by_payloads.table is None
        assert by_records.table is None
        assert [row["n"] for row in by_payloads.payloads] == [0, 7, 2, 3]
        assert by_payloads.records == by_records.records

    def test_one_record_leaves_the_table_as_it_is(self) -> None:
        batch = self.made()
        record = batch.record(2)
        record.payload["n"] = 7

        assert record.position == b"12"
        assert batch.table is not None
        assert [row["n"] for row in batch.payloads] == [0, 1, 2, 3]

    def test_a_part_keeps_identities_keys_and_the_table(self) -> None:
        columns = Columns(keys=[b"a", b"b", b"c", b"d"], operations=[Operation.UPDATE] * 4)
        batch = self.made(columns)
        part = batch.select([1, 3])
        rest = batch.without([0, 2], part._payloads or [], dict)

        assert [part.table, rest.table] == [numbers(1, 3)] * 2
        assert list(part.sequences) == list(rest.sequences) == [11, 13]
        assert part.records == rest.records
        assert [(each.key, each.operation, each.position) for each in part.records] == [
            (b"b", Operation.UPDATE, b"11"),
            (b"d", Operation.UPDATE, b"13"),
        ]

    def test_a_deep_copy_has_rows_of_its_own(self) -> None:
        batch = self.made()
        shallow, deep = batch.copy(deep=False), batch.copy(deep=True)
        deep.payloads[0]["n"] = 7

        assert shallow.payloads[0]["n"] == 0
        assert batch.table is not None

    def test_a_shallow_copy_has_a_list_of_its_own(self) -> None:
        batch = self.made()
        given = batch.copy(deep=False)
        given.payloads.pop()

        assert [row["n"] for row in batch.payloads] == [0, 1, 2, 3]


def test_tables_of_one_schema_are_joined_and_others_become_rows() -> None:
    def read(table: pa.Table, first: int) -> Payloads:
        return Payloads.of_table(table, Positions(b"%d", range(first, first + table.num_rows), ascending=True))

    joined = join([read(numbers(1, 2), 1), read(numbers(3), 3)])
    mixed = join([read(numbers(1), 1), read(pa.table({"m": [2]}), 2)])

    assert isinstance(joined, Payloads)
    assert joined.table == numbers(1, 2, 3)
    assert isinstance(joined.positions, Positions)
    assert joined.positions.numbers == range(1, 4)
    assert [record.payload.after for record in mixed] == [{"n": 1, "text": "t1"}, {"m": 2}]
    assert estimated_bytes(read(pa.table({"x": pa.nulls(100)}), 1)) == 100


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two columns named 'a'"):
        Payloads.of_table(pa.table([[1], [2]], names=["a", "a"]), [b"1"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62], pa.timestamp("us")),
        pa.array([1], pa.timestamp("ns")),
        pa.array([10**8], pa.date32()),
        pa.array([0], pa.timestamp("us", "No/Zone")),
        pa.array([[0], [2**62]], pa.list_(pa.timestamp("us"))),
        pa.array([{"at": 2**62}], pa.struct([("at", pa.timestamp("us"))])),
        pa.array([b"\xff"]).cast(pa.string(), safe=False),
    ],
)
def test_values_that_no_record_can_hold_are_found_without_making_rows(column: pa.Array) -> None:
    with pytest.raises(pa.ArrowInvalid, match="x has a value that a record cannot hold"):
        check_values(pa.table({"x": column}))
    check_values(pa.table({"x": pa.nulls(3, column.type)}))
