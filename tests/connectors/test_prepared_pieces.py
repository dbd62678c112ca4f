"""Prepared pieces: what executors make ready and the driver takes is what `write` would have written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import batch_of
from conduit_connectors import file

from conduit_py.batch import Batch
from conduit_py.record import Record
from conduit_py.sdk import PreparingDestination


def prepared(declared: PreparingDestination[Any], batches: Sequence[Batch]) -> tuple[bytes, list[dict[int, Any]]]:
    elsewhere = declared.fresh()
    elsewhere.equip(declared.fresh().equipment())
    refused = [dict(elsewhere.prepare(batch) or {}) for batch in batches]
    return elsewhere.prepared(), refused


TEXTS = ["plain", "tab\tand\nline\r", "back\\slash \\N", "", "ünïcode ☃", "'quoted' \"twice\""]


@pytest.mark.parametrize("format", ["json", "opencdc", "lines"])
def test_a_file_is_the_same_bytes(tmp_path: Path, format: Any) -> None:
    payloads: list[Any] = [{"n": n, "text": text} for n, text in enumerate(TEXTS)]
    raw: list[Any] = [text.encode() for text in TEXTS]
    records = [Record.of(each) for each in (raw if format == "lines" else payloads)]
    records.insert(3, Record.of({"n": float("nan")} if format == "json" else b"two\nlines"))
    batches = [batch_of(*records[:4]), batch_of(*records[4:])]
    files = []
    refusals = []
    for way in ("written", "taken"):
        declared = file.Destination(path=tmp_path / way, format=format)
        opened = declared.fresh()
        opened.open()
        if way == "written":
            refusals.append([opened.write(batch) for batch in batches])
        else:
            piece, refused = prepared(declared, batches)
            opened.take([piece])
            refusals.append(refused)
        opened.flush()
        opened.teardown()
        files.append((tmp_path / way).read_bytes())
    assert files[0] == files[1]
    assert refusals[0] == refusals[1]


def test_a_csv_file_is_written_where_its_header_is_known(tmp_path: Path) -> None:
    assert not file.Destination(path=tmp_path / "a.csv", format="csv").prepares(exactly_once=True)
