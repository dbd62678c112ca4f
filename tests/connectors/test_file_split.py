"""A file read in parts, each by another source, gives the records and positions that one reading gives."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conduit_connectors import file
from conduit_connectors.file import record_ends
from conduit_connectors.file.handle import FilePart
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, Lag, Reading

LINE = st.sampled_from([b"", b"{}", b'{"n": 1}', b'{"text": "' + b"x" * 40 + b'"}', b"torn", b"\r"])
LINES = st.lists(LINE, max_size=40)


def read_all(source: file.Source) -> list[tuple[Record, str | None]]:
    """Every record with the reason why it was refused, if it was."""
    found: list[tuple[Record, str | None]] = []
    while True:
        try:
            reading = source.read(7)
        except EndOfSource:
            source.teardown()
            return found
        refused = reading.refused if isinstance(reading, Reading) else {}
        records = reading.records if isinstance(reading, Reading) else reading
        found += [(record, refused.get(index)) for index, record in enumerate(records)]


def whole(options: dict[str, Any], position: bytes | None) -> list[tuple[Record, str | None]]:
    source = file.Source(**options)
    source.open(position)
    return read_all(source)


def in_parts(options: dict[str, Any], position: bytes | None, size: int) -> list[tuple[Record, str | None]]:
    splitting = file.Source(**options)
    splitting.open(position)
    found: list[tuple[Record, str | None]] = []
    while True:
        try:
            part = splitting.split(size)
        except EndOfSource:
            splitting.teardown()
            return found
        reading = file.Source(**options)
        reading.open_part(part)
        found += read_all(reading)


@given(
    lines=LINES,
    ended=st.booleans(),
    size=st.integers(1, 200),
    form=st.sampled_from(["json", "lines"]),
    start=st.integers(0, 40),
)
def test_the_parts_of_a_file_are_the_file(lines: list[bytes], ended: bool, size: int, form: str, start: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        path.write_bytes(b"\n".join(lines) + (b"\n" if ended else b""))
        options = {"path": path, "format": form}
        every = whole(options, None)
        position = every[start - 1][0].position if 0 < start <= len(every) else None

        rest = whole(options, position)

        assert in_parts(options, position, size) == rest
        assert rest == (every[start:] if position else every)


CSV_PIECES = [b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b'"b"', b"\xff", b"c" * 30, b'"d\nd",e\n', b"\n\n"]
CSV = st.lists(st.sampled_from(CSV_PIECES), max_size=60).map(b"".join)


@given(
    text=CSV,
    bom=st.booleans(),
    size=st.integers(1, 200),
    block_size=st.integers(1, 50),
    size_max=st.integers(8, 60),
    header=st.sampled_from([None, ["x"], ["x", "y"]]),
    start=st.integers(0, 40),
)
@example(text=b'a"b,"c\nd\n"e', bom=False, size=1, block_size=50, size_max=60, header=["x", "y"], start=0)
def test_the_parts_of_a_csv_file_are_the_file(
    text: bytes, bom: bool, size: int, block_size: int, size_max: int, header: list[str] | None, start: int
) -> None:
    """With quotes in any place, that are closed or not, and rows and lines that are too long."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_ends, "_BLOCK_SIZE", block_size)
        path = Path(folder) / "in"
        path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + (b"x,y\n" if header is None else b"") + text)
        options = {"path": path, "format": "csv", "header": header, "line_size_max": size_max}
        every = whole(options, None)
        position = every[start - 1][0].position if 0 < start <= len(every) else None

        assert in_parts(options, position, size) == (every[start:] if position else every)


def test_a_csv_file_of_many_blocks_is_divided_at_rows(tmp_path: Path) -> None:
    """Plain rows, then rows with a quote, then one that spans blocks, then plain ones."""
    rows = [f"{n},plain" for n in range(30_000)] + [f'{n},"a ""text""\nof two lines"' for n in range(30_000, 60_000)]
    rows += [f'60000,"{"long " * 300_000}"'] + [f"{n},plain" for n in range(60_001, 90_000)]
    path = tmp_path / "in.csv"
    path.write_text("n,text\n" + "\n".join(rows))
    options: dict[str, Any] = {"path": path, "format": "csv"}
    splitting = file.Source(**options)
    splitting.open(None)
    size = path.stat().st_size
    parts = [splitting.split(100_000) for _ in range(10)]
    splitting.teardown()
    ends = [msgspec.msgpack.decode(part, type=FilePart).end for part in parts]

    assert all(0 <= end - 100_000 * number < 200 * number for number, end in enumerate(ends, 1))
    assert size > ends[-1]
    assert [int(record.payload["n"]) for record, _ in in_parts(options, None, 100_000)] == list(range(90_000))


def test_a_file_that_was_replaced_since_it_was_split_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("one\ntwo\nthree\n")
    splitting = file.Source(path=path)
    splitting.open(None)
    splitting.split(4)
    part = splitting.split(100)
    splitting.teardown()
    path.write_text("One\ntwo\nthree\n")

    with pytest.raises(FatalError, match="is not the file that was found when it was split"):
        file.Source(path=path).open_part(part)


@pytest.mark.parametrize(
    ("options", "can"),
    [
        ({}, True),
        ({"format": "json"}, True),
        ({"format": "csv"}, True),
        ({"tail": True}, False),
        ({"path": "*.csv", "format": "csv"}, True),
        ({"path": "in.csv.gz", "format": "csv"}, True),
    ],
)
def test_a_file_that_ends_and_several_files_can_be_split(tmp_path: Path, options: dict[str, Any], can: bool) -> None:
    assert file.Source(**{"path": tmp_path / "in", **options}).splits() is can


@pytest.mark.parametrize("size", [1, 150, 10_000])
def test_the_parts_of_several_files_are_those_files(tmp_path: Path, size: int) -> None:
    for number in range(6):
        text = "n,text\n" + "".join(f'{number * 10 + row},"two\nlines"\n' for row in range(number))
        content = text.encode()
        name = f"{number}.csv" + (".gz" if number % 2 else "")
        (tmp_path / name).write_bytes(gzip.compress(content) if number % 2 else content)
    options = {"path": tmp_path / "*.csv*", "format": "csv", "on_replaced": "reread"}
    read = whole(options, None)

    assert len(read) == sum(range(6))
    for position in (None, read[4][0].position, read[-1][0].position):
        assert in_parts(options, position, size) == whole(options, position)


def test_what_is_left_to_split_is_its_lag(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("one\ntwo\n")
    source = file.Source(path=path)
    source.open(None)

    before = source.lag()
    source.split(4)

    assert (before, source.lag()) == (Lag(bytes=8), Lag(bytes=4))
    source.teardown()
