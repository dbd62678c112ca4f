"""The file source: what becomes of the lines of a file, good and bad, and of files that cannot be read."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file
from conduit_connectors.line_formats import LineFormat

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Records

ReadAll = Callable[..., list[Record]]
ReadRefused = Callable[..., list[tuple[Any, str]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in"


def after(records: list[Record]) -> list[Any]:
    return [record.payload.after for record in records]


def records_of(reading: Records | Reading) -> list[Record]:
    assert not isinstance(reading, Reading)
    return list(reading)


def offsets(records: list[Record]) -> list[int]:
    return [int(record.position.rpartition(b":")[2]) for record in records]


def test_a_line_is_a_record_of_raw_bytes_even_when_it_is_empty(path: Path, read_all: ReadAll) -> None:
    path.write_bytes(b"one\n\nthr\xffee\r\n\r\r\n last ")

    records = read_all(file.Source(path=path, format="lines"))

    assert after(records) == [b"one", b"", b"thr\xffee", b"\r", b" last "]
    assert offsets(records) == [4, 5, 13, 16, 22]


def test_a_json_line_is_the_payload_itself_and_blank_lines_are_passed_over(path: Path, read_all: ReadAll) -> None:
    path.write_bytes(b'\n{"a": 123456789012345678901234567890}\r\n  \t \r\n\n{"b": [1.5, null]}\n\n')

    records = read_all(file.Source(path=path, format="json"), n=1)

    assert after(records) == [{"a": 123456789012345678901234567890}, {"b": [1.5, None]}]
    assert offsets(records) == [40, 66]
    assert records[0] == Record(position=records[0].position, payload=Payload(after=after(records)[0]))


def test_an_opencdc_line_is_the_whole_record_with_a_position_of_ours(path: Path, read_all: ReadAll) -> None:
    written = Record(b"theirs", Operation.UPDATE, {"m": "1"}, b"key", Payload({"old": 1}, b"new"))
    path.write_bytes(written.to_json() + b"\n\n" + written.to_json())

    records = read_all(file.Source(path=path, format="opencdc"))

    assert [(r.operation, r.metadata, r.key, r.payload) for r in records] == 2 * [
        (Operation.UPDATE, {"m": "1"}, b"key", Payload({"old": 1}, b"new"))
    ]
    size = path.stat().st_size
    assert offsets(records) == [size // 2, size]


def test_a_csv_row_has_its_fields_as_text_under_the_names_of_the_header(path: Path, read_all: ReadAll) -> None:
    path.write_bytes('id,text\r\n1,"say ""hi"",\nthen go"\r\n\r\n2,ä\n3,'.encode())

    records = read_all(file.Source(path=path, format="csv"))

    assert after(records) == [
        {"id": "1", "text": 'say "hi",\nthen go'},
        {"id": "2", "text": "ä"},
        {"id": "3", "text": ""},
    ]
    assert offsets(records) == [34, 41, 43]


def test_csv_columns_can_be_named_and_delimited_by_something_else(path: Path, read_all: ReadAll) -> None:
    path.write_text("1\tx,y\n2\tz\n")

    records = read_all(file.Source(path=path, format="csv", delimiter="\t", header=["a", "b"]))

    assert after(records) == [{"a": "1", "b": "x,y"}, {"a": "2", "b": "z"}]


@pytest.mark.parametrize("format", ["json", "csv", "opencdc"])
def test_a_byte_order_mark_is_no_part_of_the_text(format: LineFormat, path: Path, read_all: ReadAll) -> None:
    text = {"json": '{"a":"1"}', "csv": "a\n1", "opencdc": '{"payload":{"after":{"a":"1"}}}'}[format]
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())

    assert after(read_all(file.Source(path=path, format=format))) == [{"a": "1"}]


def test_lines_that_are_not_json_objects_are_refused_and_kept(
    path: Path, read_all: ReadAll, read_refused: ReadRefused
) -> None:
    bad = [b'{"a": ', b"[1]", b'"x"', b"7", b"1.5", b"true", b"null", b'{"a": "\xff"}', b"\x00", b'{"a": NaN}']
    path.write_bytes(b'{"n": 0}\n' + b"\r\n".join(bad) + b'\n\n{"n": 1}\n')
    source = file.Source(path=path, format="json")

    records = read_all(source)
    refused = read_refused(source)

    assert after(records) == [{"n": 0}, *bad, {"n": 1}]
    assert offsets(records)[-2:] == [path.stat().st_size - 10, path.stat().st_size]
    assert [raw for raw, _ in refused] == bad
    assert [reason for _, reason in refused[1:7]] == [
        f"the line must be a JSON object, not {what}"
        for what in ("an array", "a string", "a number", "a number", "a boolean", "null")
    ]
    assert all(reason.startswith("not valid JSON: ") for _, reason in refused[:1] + refused[7:])


def test_json_nested_too_deeply_is_refused(path: Path, read_refused: ReadRefused) -> None:
    line = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    path.write_bytes(line + b'\n{"n": 1}\n')

    [(raw, reason)] = read_refused(file.Source(path=path, format="json"))

    assert raw == line
    assert "not valid JSON" in reason


def test_a_line_that_is_no_whole_record_is_refused_with_the_field_named(path: Path, read_refused: ReadRefused) -> None:
    path.write_text('{"operation": "destroy"}\n{"payload": {"after": "%%%"}}\n{"after": 1}\n')

    refused = read_refused(file.Source(path=path, format="opencdc"))

    assert [reason.partition(",")[0] for _, reason in refused] == [
        "operation must be one of create",
        "payload.after is not base64: Only base64 data is allowed",
        "record has unknown fields: 'after'",
    ]


def test_rows_that_do_not_fit_are_refused_as_they_are_and_alone(path: Path, read_refused: ReadRefused) -> None:
    path.write_bytes(b'a,b\n1\n"x"y,2\n1,2,3\n4,"fi\xffne\nor not"\n5,6\n"7\n8"z,9\nq\rr,s\n')
    source = file.Source(path=path, format="csv")

    refused = read_refused(source)

    assert refused == [
        (b"1", "the row has 1 fields, the header has 2"),
        (b'"x"y,2', "not a valid CSV row: ',' expected after '\"'"),
        (b"1,2,3", "the row has 3 fields, the header has 2"),
        (b'4,"fi\xffne\nor not"', "the row is not valid UTF-8"),
        (b'"7\n8"z,9', "not a valid CSV row: ',' expected after '\"'"),
        (b"q\rr,s", refused[-1][1]),
    ]
    assert refused[-1][1].startswith("not a valid CSV row: new-line character seen in unquoted field")


def test_a_quote_that_is_never_closed_costs_one_line(path: Path, read_all: ReadAll, read_refused: ReadRefused) -> None:
    path.write_text('a,b\n1,2\n3,"4\n5,6\n7,8\n')
    source = file.Source(path=path, format="csv")

    assert after(read_all(source)) == [{"a": "1", "b": "2"}, b'3,"4', {"a": "5", "b": "6"}, {"a": "7", "b": "8"}]
    [(raw, reason)] = read_refused(source)
    assert (raw, reason.partition(" is ")[0]) == (b'3,"4', "a quoted field that begins on this line")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"a,b,a\n", "'a' is there more than once"),
        (b"a,\xff\n", "the row is not valid UTF-8"),
        (b'a,"b"c\n', "not a valid CSV row: ',' expected after '\"'"),
    ],
)
def test_a_header_that_names_no_columns_stops_the_source(
    header: bytes, problem: str, path: Path, read_all: ReadAll
) -> None:
    path.write_bytes(header + b"1,2,3\n")

    with pytest.raises(FatalError) as raised:
        read_all(file.Source(path=path, format="csv"))

    assert raised.value.message == f"the header of {path} cannot be used: {problem}"
    assert "header=" in (raised.value.suggestion or "")


@pytest.mark.parametrize("format", ["lines", "json", "csv", "opencdc"])
def test_an_empty_file_ends_at_once_and_stays_ended(format: LineFormat, path: Path) -> None:
    path.touch()
    source = file.Source(path=path, format=format)
    source.open(None)

    for _ in range(2):
        with pytest.raises(EndOfSource):
            source.read(10)
    source.teardown()


def test_a_bounded_source_goes_on_where_it_ended_once_the_file_has_grown(path: Path, read_all: ReadAll) -> None:
    path.write_text("one\ntwo")
    source = file.Source(path=path)
    position = read_all(source)[-1].position

    assert read_all(source, position) == []
    with path.open("a") as more:
        more.write("\nthree\n")
    assert after(read_all(source, position)) == [b"", b"three"]


def test_a_full_batch_is_returned_although_blocks_end_in_between(path: Path) -> None:
    path.write_text("".join(f"{number}\n" for number in range(30_000)))
    source = file.Source(path=path)
    source.open(None)

    sizes = {len(records_of(source.read(1000))) for _ in range(30)}
    source.teardown()

    assert sizes == {1000}


def test_a_line_beyond_the_limit_is_refused_with_its_size(
    path: Path, read_all: ReadAll, read_refused: ReadRefused
) -> None:
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * 5000 + b'"}\n{"c": 3}\n')
    source = file.Source(path=path, format="json", line_size_max=100)

    records = read_all(source)
    [(kept, reason)] = read_refused(source)

    assert [record.payload.after for record in records[::2]] == [{"a": 1}, {"c": 3}]
    assert kept == b'{"b": "' + b"x" * 1017
    assert reason == "the line has 5009 bytes, more than line_size_max; only its first 1024 bytes are kept here"
    assert offsets(records) == [9, 5019, 5028]


@pytest.mark.parametrize("format", ["lines", "json", "opencdc"])
def test_a_beginning_that_would_do_by_itself_does_not_hide_that_the_line_is_long(
    format: LineFormat, path: Path, read_refused: ReadRefused
) -> None:
    path.write_bytes(b"{}" + b" " * 5000 + b"\n")

    [(kept, reason)] = read_refused(file.Source(path=path, format=format, line_size_max=100))

    assert kept == b"{}" + b" " * 1022
    assert "5002 bytes" in reason


def test_a_row_beyond_the_limit_costs_its_first_line(path: Path, read_all: ReadAll) -> None:
    path.write_bytes(b'a\n"1\n' + b"22\n" * 10 + b'3"\n4\n"5\n' + b"6" * 50 + b'7"\n8\n')

    records = read_all(file.Source(path=path, format="csv", line_size_max=20), n=3)

    assert after(records)[:2] == [b'"1', {"a": "22"}]
    assert after(records)[10:] == [{"a": "22"}, {"a": '3"'}, {"a": "4"}, b'"5', b"6" * 50 + b'7"', {"a": "8"}]


MEMORY_CHECK = """
import resource, sys
from conduit_connectors import file
from conduit_py.sdk import EndOfSource, Reading

source = file.Source(path=sys.argv[1], format=sys.argv[2])
source.open(None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = []
try:
    while True:
        reading = source.read(256)
        refused = reading.refused if isinstance(reading, Reading) else {}
        records = reading.records if isinstance(reading, Reading) else reading
        found += [(len(r.payload.after), refused.get(i, "")[:30]) for i, r in enumerate(records)]
except EndOfSource:
    pass
print(found)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_line_of_200_mb_is_a_dead_letter_in_bounded_memory(format: LineFormat, path: Path) -> None:
    with path.open("wb") as big:
        big.write(b'{"a": 1}\n')
        for _ in range(200):
            big.write(b"x" * 1_000_000)
        big.write(b'\n{"a": 2}\n')

    run = subprocess.run(
        [sys.executable, "-c", MEMORY_CHECK, str(path), format], capture_output=True, text=True, check=True
    )
    found, grown = run.stdout.splitlines()

    expected = [(1, ""), (1024, "the line has 200000000 bytes, "), (1, "")]
    assert found == str(expected if format == "json" else expected[1:])
    assert int(grown) * (1 if sys.platform == "darwin" else 1024) < 80_000_000


def test_a_missing_file_is_named(path: Path) -> None:
    source = file.Source(path=path)

    with pytest.raises(FatalError, match=f"there is no file {path}") as raised:
        source.open(None)
    source.teardown()

    assert raised.value.suggestion == "create it, correct the path, or wait for it with tail=True"


@pytest.mark.parametrize("tail", [False, True])
def test_what_is_no_regular_file_is_named(tail: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("", "a directory"), ("pipe", "not a regular file")):
        source = file.Source(path=tmp_path / name, tail=tail)

        with pytest.raises(FatalError) as raised:
            source.open(None)
        source.teardown()

        assert raised.value.message == f"cannot read {tmp_path / name}: it is {what}"


def test_a_file_that_may_not_be_read_is_named(path: Path) -> None:
    path.touch(mode=0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")

    with pytest.raises(FatalError, match=f"cannot open {path}: Permission denied"):
        file.Source(path=path).open(None)


def test_a_path_that_leads_through_a_file_is_named_even_when_it_would_be_waited_for(path: Path) -> None:
    path.touch()

    with pytest.raises(FatalError, match=f"cannot open {path}/below: Not a directory"):
        file.Source(path=path / "below", tail=True).open(None)


def test_a_position_of_another_connector_is_an_error(path: Path) -> None:
    path.touch()
    source = file.Source(path=path)

    with pytest.raises(FatalError, match="b'generator:1:7' is not a position of the file source"):
        source.open(b"generator:1:7")
    source.teardown()


def test_problems_in_options_are_all_reported(path: Path) -> None:
    source = file.Source(pth=path, format="xml", delimiter="||", line_size_max=0, header=["a", "a"])  # type: ignore[arg-type, call-arg]

    assert {problem.path: problem.suggestion for problem in source.problems} == {
        "path": "add path=…: the file to read, or several, as in/*.csv",
        "pth": "did you mean 'path'?",
        "format": None,
        "delimiter": None,
        "line_size_max": None,
        "header": None,
    }
    assert [p.message for p in file.Source(path=path, header=["a"]).problems] == [
        "Value error, header goes with format=\"csv\", not 'lines'"
    ]


def test_a_tailed_line_counts_once_its_line_end_is_there(path: Path) -> None:
    source = file.Source(path=path, format="json", tail=True)
    source.open(None)
    with pytest.raises(NothingYet):
        source.read(10)

    with path.open("ab", buffering=0) as writer:
        writer.write(b'{"a": 1}\n{"b"')
        first = source.read(10)
        with pytest.raises(NothingYet):
            source.read(10)
        writer.write(b": 2}\n")
        second = source.read(10)
    source.teardown()

    assert after(records_of(first) + records_of(second)) == [{"a": 1}, {"b": 2}]


def test_a_tailed_csv_row_counts_once_its_quote_is_closed(path: Path) -> None:
    path.write_text('a\n"one\n')
    source = file.Source(path=path, format="csv", tail=True)
    source.open(None)
    with pytest.raises(NothingYet):
        source.read(10)

    with path.open("a") as writer:
        writer.write('two"\n')
    records = source.read(10)
    source.teardown()

    assert after(records_of(records)) == [{"a": "one\ntwo"}]


def test_a_tailed_csv_row_is_given_up_once_it_is_too_long(path: Path) -> None:
    """Or a quote that is never closed would fill the memory, and hold up everything behind it."""
    path.write_text('a\n"never closed\n' + "1\n" * 20)
    source = file.Source(path=path, format="csv", tail=True, line_size_max=30)
    source.open(None)

    reading = source.read(3)
    source.teardown()

    assert isinstance(reading, Reading)
    assert after(list(reading.records)) == [b'"never closed', {"a": "1"}, {"a": "1"}]
    assert list(reading.refused) == [0]
