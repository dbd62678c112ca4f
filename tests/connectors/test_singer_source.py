"""The singer source: a tap as a process, read exactly if it repeats its order, and never with a row skipped."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from conduit_connectors import singer
from conduit_connectors.singer.source import without_bare_mark

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Operation, Reading, Record, TransientError, metadata
from conduit_py.testing import source_acceptance

TAP = [sys.executable, "-S", "-E", str(Path(__file__).parent / "scripted_tap.py")]
ROWS = [{"id": number, "at": "2026-01-02T03:04:05Z"} for number in range(8)]


def tap(folder: Path, rows: list[dict[str, Any]] | None = None, **config: Any) -> singer.Source:
    (folder / "rows.json").write_text(json.dumps(ROWS if rows is None else rows))
    return singer.Source(command=TAP, config={"rows": str(folder / "rows.json"), **config}, select=["orders"])


def exact(tmp_path: Path) -> singer.Source:
    config = tap(tmp_path).options.config
    return singer.Source(command=TAP, config=config, catalog={"streams": [{"stream": "orders"}]})


def with_an_inclusive_bookmark(tmp_path: Path) -> singer.Source:
    return tap(tmp_path, inclusive=True)


TestExact = source_acceptance(exact)
TestWithAnInclusiveBookmark = source_acceptance(with_an_inclusive_bookmark)


@contextmanager
def opened(source: singer.Source, position: bytes | None = None) -> Iterator[singer.Source]:
    fresh = source.fresh()
    try:
        fresh.open(position)
        yield fresh
    finally:
        fresh.teardown()


def read_all(source: singer.Source, limit: int = 1000) -> list[Reading]:
    readings: list[Reading] = []
    while sum(len(each.records) for each in readings) < limit:
        try:
            readings.append(cast("Reading", source.read(limit)))
        except NothingYet:
            continue
        except EndOfSource:
            break
    return readings


def ids(readings: list[Reading]) -> list[int]:
    return [record.payload["id"] for each in readings for record in each.records]


def records(readings: list[Reading]) -> list[Record]:
    return [record for each in readings for record in each.records]


def test_a_record_has_its_stream_its_key_and_its_schema(tmp_path: Path) -> None:
    with opened(tap(tmp_path)) as source:
        readings = read_all(source)

    first = records(readings)[0]
    [schema] = readings[0].schemas
    assert first.metadata[metadata.COLLECTION] == schema.collection == "orders"
    assert first.metadata[metadata.PAYLOAD_SCHEMA_VERSION] == schema.version
    assert first.key == {"id": 0}
    assert [(each.name, each.type, each.nullable, each.key) for each in schema.fields] == [
        ("id", "integer", False, True),
        ("at", "timestamptz", True, False),
    ]


def test_several_streams_are_distinguished(tmp_path: Path) -> None:
    source = tap(tmp_path)
    both = singer.Source(command=TAP, config=source.options.config, select=["*"])
    with opened(both) as reader:
        found = records(read_all(reader))

    assert [record.metadata[metadata.COLLECTION] for record in found] == ["orders", "people"] * 4


def test_a_second_run_reads_what_is_new(tmp_path: Path) -> None:
    source = tap(tmp_path, inclusive=True)
    with opened(source) as reader:
        last = [each.position or each.records[-1].position for each in read_all(reader)][-1]
    tap(tmp_path, rows=[*ROWS, {"id": 8}])
    with opened(source, last) as reader:
        again = read_all(reader)

    assert ids(again) == [8]


def test_a_tap_with_another_order_repeats_and_never_skips(tmp_path: Path) -> None:
    rows = [{"id": number} for number in range(40)]
    source = tap(tmp_path, rows=rows, shuffle=True)
    with opened(source) as reader:
        begun = records(read_all(reader, limit=20))
    with opened(source, begun[19].position) as reader:
        rest = read_all(reader)

    delivered = {record.payload["id"] for record in begun[:20]} | set(ids(rest))
    assert delivered == set(range(40))


def test_a_tap_that_fails_is_tried_again_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conduit_py.singer")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    config = {"rows": str(tmp_path / "rows.json"), "fail_after": 4}
    source = singer.Source(command=TAP, config=config, secret_config={"token": "swordfish"}, select=["orders"])
    with opened(source) as reader:
        assert ids(read_all(reader, limit=4)) == [0, 1, 2, 3]
        with pytest.raises(TransientError, match=r"ended with exit code 1: .*the API said 503"):
            read_all(reader)

    assert "swordfish" not in caplog.text
    assert "\x1b" not in caplog.text
    assert "begin with ***" in caplog.text


def test_a_line_that_is_no_message_is_refused_alone(tmp_path: Path) -> None:
    with opened(tap(tmp_path, noise=True)) as source:
        readings = read_all(source)

    refused = [reason for each in readings for reason in each.refused.values()]
    assert len(refused) == 8
    assert refused[0].startswith("not valid JSON")
    kept = [record for each in readings for index, record in enumerate(each.records) if index not in each.refused]
    assert [record.payload["id"] for record in kept] == list(range(8))


def test_stop_ends_a_wait_for_a_tap_that_hangs(tmp_path: Path) -> None:
    with opened(tap(tmp_path, hang_after=2)) as source:
        assert ids(read_all(source, limit=2)) == [0, 1]
        source.stop()
        with pytest.raises(EndOfSource):
            source.read(1)


def alive_in(group: int) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = each.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(each.parent.name)
    return found


def test_a_tap_ends_with_the_source_and_so_do_its_children(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    wrapper = ["/bin/sh", "-c", 'echo $$ > pid; "$@"; true', "sh", *TAP]
    config = {"rows": str(tmp_path / "rows.json"), "hang_after": 2}
    source = singer.Source(command=wrapper, config=config, select=["orders"])
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        with opened(source) as reader:
            read_all(reader, limit=2)
            group = int((tmp_path / "pid").read_text())
    finally:
        os.chdir(here)

    while alive_in(group):
        time.sleep(0.05)


def test_secrets_are_on_no_command_line_and_in_no_file(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    config = {"rows": str(tmp_path / "rows.json"), "hang_after": 2}
    source = singer.Source(command=TAP, config=config, secret_config={"token": "swordfish"}, select=["orders"])
    with opened(source) as reader:
        read_all(reader, limit=2)
        assert reader._tap is not None
        line = Path(f"/proc/{reader._tap._process.pid}/cmdline").read_bytes()

    assert b"swordfish" not in line
    assert "swordfish" not in repr(source.options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"command": ["no-such-tap"]}, "'no-such-tap' cannot be started"),
        ({"command": ["true"]}, "true --discover printed no catalog"),
        ({"command": TAP, "config": {}, "select": ["nothing*"]}, "no stream is selected; the tap has: orders, people"),
    ],
)
def test_what_can_never_work_is_refused_with_what_to_do(options: dict[str, Any], text: str) -> None:
    source = singer.Source(**options)
    with pytest.raises(FatalError, match=text) as caught, opened(source):
        pass
    assert caught.value.suggestion


def test_a_row_that_is_marked_as_deleted_is_a_delete(tmp_path: Path) -> None:
    source = tap(tmp_path, rows=[{"id": 1}, {"id": 2, "_sdc_deleted_at": "2026-01-01T00:00:00Z"}])
    deleting = singer.Source(command=TAP, config=source.options.config, select=["orders"], hard_delete=True)
    with opened(deleting) as reader:
        found = records(read_all(reader))

    assert [record.operation for record in found] == [Operation.CREATE, Operation.DELETE]
    assert found[1].key == {"id": 2}


@pytest.mark.parametrize(
    ("state", "given"),
    [
        ({"currently_syncing": "a"}, {}),
        ({"currently_syncing": "a", "bookmarks": {"a": {}}}, {"bookmarks": {"a": {}}}),
        ({"currently_syncing": "a", "bookmarks": {"a": {"id": 1}}}, None),
        ({"bookmarks": {}}, None),
        ("a text", None),
    ],
)
def test_a_stream_under_way_without_a_bookmark_is_no_reason_to_leave_it_out(state: Any, given: Any) -> None:
    assert without_bare_mark(state) == (state if given is None else given)


def test_the_tap_is_probed_by_its_catalog(tmp_path: Path) -> None:
    assert tap(tmp_path).probe() == "1 of 2 streams are selected"
