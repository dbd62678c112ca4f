"""The file connectors pass the acceptance suite, in every format and way of ending."""

import base64
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_connectors import file

from conduit_py.record import Record
from conduit_py.testing.acceptance import destination_acceptance, source_acceptance

ROWS = [{"n": number, "text": "ä" * number} for number in range(15)]


def json_lines(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file.Source(path=path, format="json")


def plain_lines_without_a_last_newline(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.txt"
    path.write_text("one\n\nthree\r\nvier\nlast")
    return file.Source(path=path, format="lines")


def csv_rows(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.csv"
    path.write_text('a,b\n1,"two\nlines"\n3,4\n5,6\n')
    return file.Source(path=path, format="csv")


def opencdc_lines(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(Record.of(row, position=b"old").to_json() + b"\n" for row in ROWS))
    return file.Source(path=path, format="opencdc")


def bad_lines_among_good(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": \n\xff\xfe\n{"n": 4}\n')
    return file.Source(path=path, format="json")


def tailed(tmp_path: Path) -> file.Source:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file.Source(path=path, format="json", tail=True)


TestJsonSource = source_acceptance(json_lines)
TestLinesSource = source_acceptance(plain_lines_without_a_last_newline)
TestCsvSource = source_acceptance(csv_rows)
TestOpencdcSource = source_acceptance(opencdc_lines)
TestSourceOfBadLines = source_acceptance(bad_lines_among_good)
TestTailingSource = source_acceptance(tailed, records=len(ROWS))


def json_file(tmp_path: Path) -> tuple[file.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "deep" / "out.jsonl"
    return file.Destination(path=path, format="json"), lambda: [json.loads(line) for line in lines(path)]


def csv_file(tmp_path: Path) -> tuple[file.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "out.csv"
    return file.Destination(path=path, format="csv"), lambda: [dict(row) for row in csv.DictReader(lines(path))]


def opencdc_file(tmp_path: Path) -> tuple[file.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "out.jsonl"
    destination = file.Destination(path=path, format="opencdc")
    return destination, lambda: [json.loads(line)["payload"]["after"] for line in lines(path)]


def lines_file(tmp_path: Path) -> tuple[file.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "out.txt"
    return file.Destination(path=path, format="lines"), lambda: [line.encode() for line in lines(path)]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def text_fields(number: int) -> Record:
    return Record.of({"n": str(number), "text": 'quoted "text"'}, position=b"%d" % number)


def raw_line(number: int) -> Record:
    return Record.of(base64.b64encode(b"%d" % number), position=b"%d" % number)


NOT_JSON = Record.of({"n": float("nan")})
TestJsonDestination = destination_acceptance(json_file, refused=NOT_JSON)
TestCsvDestination = destination_acceptance(csv_file, sample=text_fields, refused=Record.of(b"raw"))
TestOpencdcDestination = destination_acceptance(opencdc_file, refused=NOT_JSON)
TestLinesDestination = destination_acceptance(lines_file, sample=raw_line, refused=Record.of(b"two\nlines"))
