"""Properties of the file source: any reads, any blocks, any resume give the same records at the same positions."""

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_connectors import file
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.record import Payload, Record
from conduit_py.testing import strategies

ReadAll = Callable[..., list[Record]]

property_test = settings(deadline=None)

line_ends = st.sampled_from(["\n", "\r\n"])
last_ends = st.sampled_from(["", "\n", "\r\n"])
sizes = st.integers(1, 5) | st.sampled_from([17, 100, 4096])
texts = st.text(st.sampled_from('ab ,;"\n\r\té€😀') | st.characters(exclude_categories=["Cs"]), max_size=8)


def source_of(path: Path, block_size: int, **options: Any) -> file.Source:
    """A file source that reads blocks of this size, so that even small files have many of them."""
    kind = type("SmallBlocks", (file.Source,), {"_block_size": block_size})
    source: file.Source = kind(path=path, **options)
    return source


def check(read_all: ReadAll, content: bytes, expected: list[Any], n: int, block_size: int, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        path.write_bytes(content)
        whole = read_all(file.Source(path=path, **options), n=1000)
        assert [record.payload.after for record in whole] == expected

        source = source_of(path, block_size, **options)
        assert read_all(source, n=n) == whole
        for index, record in enumerate(whole):
            assert read_all(source, record.position, n=n) == whole[index + 1 :]


@given(st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b""))), line_ends, last_ends, sizes, sizes)
@property_test
def test_lines(read_all: ReadAll, lines: list[bytes], line_end: str, last_end: str, n: int, block_size: int) -> None:
    # What ends in a carriage return, or ends the file without a line end, means something else when read.
    lines = [line.rstrip(b"\r") for line in lines]
    content = line_end.encode().join(lines) + last_end.encode()
    expected = lines if lines and (lines[-1] or last_end) else lines[:-1]
    if not lines and last_end:
        expected = [b""]

    check(read_all, content, expected, n, block_size, format="lines")


@st.composite
def json_files(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """A file of JSON lines, blank lines and lines that are not JSON, and what should be read from it."""
    content = b""
    expected: list[Any] = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["good", "good", "bad", "blank"]))
        line = {"good": b"", "bad": draw(st.sampled_from([b"{", b"\xff", b"[1]", b"{} {}"])), "blank": b" \t"}[kind]
        if kind == "good":
            value = draw(strategies.structured_data())
            line = json.dumps(value, ensure_ascii=draw(st.booleans())).encode()
            expected.append(value)
        elif kind == "bad":
            expected.append(line)
        content += line + draw(line_ends).encode()
    return (content if draw(st.booleans()) else content.removesuffix(b"\n")), expected


@given(json_files(), sizes, sizes)
@property_test
def test_json_lines(read_all: ReadAll, made: tuple[bytes, list[Any]], n: int, block_size: int) -> None:
    check(read_all, *made, n, block_size, format="json")


@given(st.lists(strategies.records(), max_size=6), line_ends, last_ends, sizes, sizes)
@property_test
def test_whole_records(
    read_all: ReadAll, records: list[Record], line_end: str, last_end: str, n: int, block_size: int
) -> None:
    content = (line_end * 2).encode().join(record.to_json() for record in records) + last_end.encode()
    expected = [record.payload.after for record in records]

    check(read_all, content, expected, n, block_size, format="opencdc")


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[bytes, list[Any], list[str] | None]:
    """A CSV file with quoted fields over several lines, blank lines, and rows that do not fit."""
    width = draw(st.integers(1, 3))
    names = [f"column {number}" for number in range(width)]
    header = draw(st.sampled_from([names, None]))
    out = io.StringIO(newline="")
    line_end = draw(line_ends)
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator=line_end)
    if header is None:
        writer.writerow(names)
    expected: list[Any] = []
    for row in draw(st.lists(st.lists(texts, min_size=width, max_size=width), max_size=5)):
        writer.writerow(row)
        expected.append(dict(zip(names, row, strict=True)))
        extra = draw(st.sampled_from(["", "", line_end, "x" + ",x" * width + line_end, '"a"b' + line_end]))
        out.write(extra)
        if extra.strip():
            expected.append(extra.strip().encode())
    content = out.getvalue().encode()
    return (content if draw(st.booleans()) else content.removesuffix(line_end.encode())), expected, header


@given(csv_files(), sizes, sizes)
@property_test
def test_csv_rows(read_all: ReadAll, made: tuple[bytes, list[Any], list[str] | None], n: int, block_size: int) -> None:
    content, expected, header = made

    check(read_all, content, expected, n, block_size, format="csv", header=header)


@given(st.binary(max_size=60) | st.text('a,"\n\r', max_size=40).map(str.encode), sizes, sizes)
@property_test
def test_csv_of_any_kind_is_cut_in_the_same_way_whatever_the_blocks(
    read_all: ReadAll, content: bytes, n: int, block_size: int
) -> None:
    """With a small limit on rows, so that giving up an endless row does not depend on the blocks either."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        path.write_bytes(content)
        options: dict[str, Any] = dict(format="csv", header=["a", "b"], line_size_max=12)
        whole = read_all(file.Source(path=path, **options), n=1000)

        source = source_of(path, block_size, **options)
        assert read_all(source, n=n) == whole
        for index, record in enumerate(whole):
            assert read_all(source, record.position, n=n) == whole[index + 1 :]


@given(st.lists(st.sampled_from([b"one\n", b"two", b"\n", b"three\r\n"]), max_size=12), sizes, sizes)
@property_test
def test_a_file_read_while_it_grows_gives_the_records_and_positions_of_the_finished_file(
    read_all: ReadAll, parts: list[bytes], n: int, block_size: int
) -> None:
    """Delivery keys are made of positions, so these must not depend on when a record was read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        tailed: list[Record] = []
        for part in parts:
            with path.open("ab") as writer:
                writer.write(part)
            # A new run for each part: each resumes where the one before had to wait.
            position = tailed[-1].position if tailed else None
            tailed += read_all(source_of(path, block_size, tail=True), position, n=n)
        whole = read_all(file.Source(path=path), n=1000) if parts else []
        unfinished = bool(parts) and not b"".join(parts).endswith(b"\n")

        assert tailed == (whole[:-1] if unfinished else whole)


@given(st.lists(strategies.structured_data(), max_size=300), sizes)
@settings(deadline=None, max_examples=30)
def test_positions_say_where_the_record_ends_and_are_all_different(
    read_all: ReadAll, values: list[dict[str, Any]], block_size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        lines = [json.dumps(value).encode() + b"\n" for value in values]
        path.write_bytes(b"".join(lines))

        records = read_all(source_of(path, block_size, format="json"), n=50)

        ends = [len(b"".join(lines[: index + 1])) for index in range(len(lines))]
        assert [int(record.position.rpartition(b":")[2]) for record in records] == ends
        assert [record.payload for record in records] == [Payload(after=value) for value in values]
        # Beyond the first KiB all positions in a file have the same beginning, so only the offset is made again.
        beyond = {record.position.rpartition(b":")[0] for record, end in zip(records, ends, strict=True) if end >= 1024}
        assert len(beyond) <= 1
