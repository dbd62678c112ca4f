"""The file destination: what becomes of records in each format, and which are refused by themselves."""

import csv
import json
import os
import pty
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file
from conduit_connectors.line_formats import LineFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import AckMode, FatalError
from conduit_py.testing import strategies
from conduit_py.testing.connector_driver import batch_of

ReadAll = Callable[..., list[Record]]
NAN = float("nan")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


def write(destination: file.Destination, *batches: list[Record]) -> list[dict[int, str]]:
    """One whole run: open, write the batches, flush, tear down. What was refused of each."""
    destination = destination.fresh()
    try:
        destination.open()
        refused = [destination.write(batch_of(batch)) for batch in batches]
        destination.flush()
    finally:
        destination.teardown()
    return refused


def records(*payloads: Any) -> list[Record]:
    return [Record.of(payload, position=b"%d" % number) for number, payload in enumerate(payloads)]


def test_json_is_the_payload_on_a_line(path: Path) -> None:
    refused = write(
        file.Destination(path=path, format="json"), records({"a": 10**30, "ä": None}, {}), records({"b": [1.5, True]})
    )

    assert refused == [{}, {}]
    assert path.read_text() == f'{{"a":{10**30},"ä":null}}\n{{}}\n{{"b":[1.5,true]}}\n'


def test_opencdc_is_the_whole_record_on_a_line_and_the_default(path: Path) -> None:
    record = Record(b"p", Operation.DELETE, {"m": "1"}, {"k": 1}, Payload(b"old", None))

    assert write(file.Destination(path=path), [record]) == [{}]

    assert path.read_bytes() == record.to_json() + b"\n"


def test_lines_are_the_bytes_of_the_payload(path: Path) -> None:
    assert write(file.Destination(path=path, format="lines"), records(b"one", b"", b"\xff\r")) == [{}]

    assert path.read_bytes() == b"one\n\n\xff\r\n"


def test_csv_has_the_columns_of_the_first_record(path: Path) -> None:
    moment = datetime(2026, 11, 16, 5, 6, 7, tzinfo=UTC)
    batches = [
        records({"text": 'a "b", c', "n": 1, "x": Decimal("1.50")}),
        records({"x": True, "n": None, "text": ""}, {"n": moment, "text": "two\nlines\r", "x": date(2026, 1, 2)}),
    ]

    assert write(file.Destination(path=path, format="csv"), *batches) == [{}, {}]

    assert path.read_bytes().decode() == (
        'text,n,x\n"a ""b"", c",1,1.50\n"",,true\n"two\nlines\r",2026-11-16T05:06:07+00:00,2026-01-02\n'
    )


def test_csv_columns_and_delimiter_can_be_chosen(path: Path) -> None:
    destination = file.Destination(path=path, format="csv", columns=["b", "a"], delimiter=";")

    assert write(destination, records({"a": "1,1", "b": "2;2"})) == [{}]

    assert path.read_text() == 'b;a\n"2;2";1,1\n'


def test_csv_goes_on_under_the_header_that_the_file_has(path: Path) -> None:
    path.write_text('\ufeff"b",a\n1,2\n')

    assert write(file.Destination(path=path, format="csv"), records({"a": "4", "b": "3"})) == [{}]

    assert path.read_text() == '\ufeff"b",a\n1,2\n3,4\n'


def test_csv_does_not_go_on_under_another_header(path: Path) -> None:
    path.write_text("a,b\n1,2\n")

    with pytest.raises(FatalError) as raised:
        write(file.Destination(path=path, format="csv", columns=["a", "c"]))

    assert raised.value.message == f"{path} has the columns a, b, not a, c"
    assert path.read_text() == "a,b\n1,2\n"


def test_csv_keeps_a_row_of_one_absent_value_from_becoming_a_blank_line(path: Path) -> None:
    assert write(file.Destination(path=path, format="csv"), records({"a": None}, {"a": ""}, {"a": "x"})) == [{}]

    assert path.read_text() == 'a\n""\n""\nx\n'


@pytest.mark.parametrize(
    ("format", "good", "bad", "reason"),
    [
        ("json", {"n": 1}, b"raw", "payload.after is raw bytes, but format 'json' writes structured data"),
        ("json", {"n": 1}, None, "payload.after is absent, but format 'json' writes it"),
        ("json", {"n": None}, {"n": NAN}, "cannot be written as JSON: n is nan"),
        ("json", {"n": 1}, {"n": [{"m": -float("inf")}]}, "cannot be written as JSON: n[0].m is -inf"),
        ("json", {"n": 1}, {"n": object()}, "cannot be written as JSON: "),
        ("opencdc", b"raw", {"n": NAN}, "cannot be written as JSON: payload.after.n is nan"),
        ("lines", b"1", {"n": 1}, 'payload.after is structured, but format "lines" writes raw bytes'),
        ("lines", b"1", None, 'payload.after is absent, but format "lines" writes raw bytes'),
        ("lines", b"1", b"1\n2", "payload.after has a line feed in it"),
        ("csv", {"n": 1}, b"raw", "payload.after is raw bytes, but format 'csv' writes structured data"),
        ("csv", {"n": 1}, None, "payload.after is absent, but format 'csv' writes it"),
        ("csv", {"n": 1}, {}, "the fields do not fit the columns of the file: missing 'n'"),
        (
            "csv",
            {"n": 1},
            {"m": 1, "o": 2},
            "the fields do not fit the columns of the file: missing 'n'; extra 'm', 'o'",
        ),
        ("csv", {"n": 1}, {"n": NAN}, "n is nan, which has no form in CSV"),
        ("csv", {"n": 1}, {"n": 10**5000}, "n is an integer of 16610 bits, which has too many digits to be written"),
        ("csv", {"n": 1}, {"n": [1]}, "n is list, which has no form in CSV"),
        ("csv", {"n": 1}, {"n": b"1"}, "n is bytes, which has no form in CSV"),
        ("csv", {"n": "a"}, {"n": "\ud800"}, "cannot be written as UTF-8: surrogates not allowed"),
    ],
)
def test_what_the_format_cannot_carry_is_refused_and_the_rest_is_written(
    format: LineFormat, good: Any, bad: Any, reason: str, path: Path
) -> None:
    first, middle, last = records(good, bad, good)
    destination = file.Destination(path=path, format=format)
    [refused] = write(destination, [first, middle, last])

    assert list(refused) == [1]
    assert refused[1].startswith(reason)
    written = path.read_bytes()
    path.unlink()
    assert write(destination, [first, last]) == [{}]
    assert written == path.read_bytes()


def test_a_first_record_that_is_refused_does_not_name_the_columns(path: Path) -> None:
    [refused] = write(file.Destination(path=path, format="csv"), records({"x": [1]}, {}, {"a": 1}, {"x": 2}))

    assert list(refused) == [0, 1, 3]
    assert path.read_text() == "a\n1\n"


def test_a_batch_of_which_everything_is_refused_writes_nothing(path: Path) -> None:
    [refused] = write(file.Destination(path=path, format="json"), records(b"raw", None))

    assert list(refused) == [0, 1]
    assert path.read_bytes() == b""


def test_it_appends_to_what_is_there_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "out.jsonl"
    for number in range(3):
        write(file.Destination(path=path, format="json"), records({"n": number}))

    assert path.read_text() == '{"n":0}\n{"n":1}\n{"n":2}\n'
    assert os.listdir(path.parent) == ["out.jsonl"]


def test_records_are_handled_only_once_flushed() -> None:
    assert file.Destination.acks is AckMode.FLUSH


def test_an_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "": "cannot open {} for appending: Is a directory",
        "file/below": "cannot open {} for appending: Not a directory",
        "pipe": "cannot append to {}: it is not a regular file",
    }
    for name, message in cases.items():
        with pytest.raises(FatalError) as raised:
            write(file.Destination(path=tmp_path / name))

        assert raised.value.message == message.format(tmp_path / name)


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o500)
    if os.access(tmp_path / "folder", os.W_OK):
        pytest.skip("this user may write everywhere")

    with pytest.raises(FatalError, match="Permission denied"):
        write(file.Destination(path=tmp_path / "folder" / "out"))


def test_columns_go_with_csv(path: Path) -> None:
    problems = file.Destination(path=path, format="json", columns=["a"]).problems

    assert [problem.message for problem in problems] == ["Value error, columns goes with format=\"csv\", not 'json'"]


raw_lines = st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").rstrip(b"\r"))
fields = st.text(st.sampled_from(' ,;"\n\r') | st.characters(exclude_categories=["Cs"]), max_size=6)
tables = st.lists(fields, min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, fields)), max_size=6)
)


@given(
    st.one_of(
        st.tuples(st.just("lines"), st.lists(raw_lines)),
        st.tuples(st.just("json"), st.lists(strategies.structured_data())),
        st.tuples(st.just("opencdc"), st.lists(strategies.data())),
        st.tuples(st.just("csv"), tables),
    ),
    st.integers(1, 4),
)
@settings(deadline=None)
def test_what_was_written_is_read_again(read_all: ReadAll, case: tuple[LineFormat, list[Any]], size: int) -> None:
    format, payloads = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        batches = [records(*payloads[start : start + size]) for start in range(0, len(payloads), size)]

        assert write(file.Destination(path=path, format=format), *batches) == [{}] * len(batches)

        assert [record.payload.after for record in read_all(file.Source(path=path, format=format))] == payloads
        assert not payloads or path.read_bytes().endswith(b"\n")


@given(st.lists(strategies.records(), min_size=1, max_size=5))
@settings(deadline=None)
def test_whole_records_are_read_again_but_for_their_position(read_all: ReadAll, written: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        assert write(file.Destination(path=path), written) == [{}]

        for record, read in zip(written, read_all(file.Source(path=path, format="opencdc")), strict=True):
            read.position = record.position
            assert read == record


@given(tables)
@settings(deadline=None)
def test_other_programs_read_our_csv(rows: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        write(file.Destination(path=path, format="csv"), records(*rows))

        with path.open(newline="", encoding="utf-8") as written:
            assert list(csv.DictReader(written, strict=True)) == rows


@given(st.lists(strategies.structured_data(strategies.json_values() | st.floats()), max_size=6))
@settings(deadline=None)
def test_no_number_ever_becomes_null(payloads: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        [refused] = write(file.Destination(path=path, format="json"), records(*payloads))

        accepted = [payload for index, payload in enumerate(payloads) if index not in refused]
        assert [json.loads(line) for line in path.read_bytes().splitlines()] == accepted


@pytest.mark.parametrize("format", ["json", "csv", "opencdc"])
def test_a_character_device_takes_everything_and_is_left_alone(format: Any) -> None:
    destination = file.Destination(path="/dev/null", format=format)

    assert write(destination, records(*({"n": n} for n in range(1000))), records({"n": 1})) == [{}, {}]
    assert not Path("/dev/.null.conduit").exists()


def test_what_a_terminal_is_given_is_whole_and_has_one_header() -> None:
    leader, terminal = pty.openpty()
    write(file.Destination(path=os.ttyname(terminal), format="csv"), records({"n": 1}), records({"n": 2}))

    shown = b""
    # On a busy machine what was written arrives in parts.
    while shown.count(b"\n") < 3:
        shown += os.read(leader, 1000)
    assert shown.split() == [b"n", b"1", b"2"]
    os.close(leader)
    os.close(terminal)


def test_exactly_once_is_refused_to_a_device() -> None:
    destination = file.Destination(path="/dev/null", format="json")
    destination.open()
    with pytest.raises(FatalError, match="/dev/null keeps nothing"):
        destination.begin("p", 1, [])
    destination.teardown()
