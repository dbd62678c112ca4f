"""Bad records: lines that cannot be parsed, decoded or held in memory."""

import base64
import json
import os
import subprocess

import pytest
from command_folder import COMMAND, KEEP, MEGABYTE, Folder, in_order, payload_of

from conduit_py.sdk import JSON_DEPTH_MAX

BAD_LINES = [b"not JSON", b'{"n": 2', b"[1, 2]", b'"text"', b'{"n": 1}{"n": 2}', b"\x00\x01", b'{"n": NaN}']


def test_unparsable_lines_are_dead_letters_with_the_line_kept(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\n' + b"\n".join(BAD_LINES) + b'\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP)
    answer = folder.run()

    assert answer.has(0)
    assert f"{len(BAD_LINES)} dead letters" in answer.stdout
    assert folder.arrived() == [1, 2]
    assert folder.letters() == [("in", line) for line in BAD_LINES]
    assert all(letter["error"] for letter in folder.lines("dead.jsonl"))


def test_the_first_unparsable_line_stops_a_pipeline_that_keeps_no_dead_letters(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nnot JSON\n{"n":2}\n')
    folder.pipeline()
    stopped, again = folder.run(), folder.run()
    folder.pipeline(dead_letters=KEEP)
    resumed = folder.run()

    for answer in (stopped, again):
        assert answer.has(1, "p: error in in: in refused a record: not valid JSON", "[dead_letter.not_allowed]")
        assert answer.has(1, "correct in.jsonl line 2, or set dead_letters=DeadLetters(…)")
    assert resumed.has(0)
    assert in_order(folder.arrived(), repeats_max=2) == [1, 2]
    assert folder.letters() == [("in", b"not JSON")]


def test_more_bad_lines_than_the_window_allows_stop_the_pipeline(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nbad\nworse\nworst\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP[:-1] + ", window_size=10, window_nack_threshold=2)")
    stopped = folder.run()
    folder.pipeline(dead_letters=KEEP)
    resumed = folder.run()

    assert stopped.has(1, "p: error in in: too many records were refused", "not valid JSON", "window_nack_threshold")
    assert resumed.has(0)
    assert in_order(folder.arrived(), repeats_max=1) == [1, 2]
    assert folder.letters() == [("in", b"bad"), ("in", b"worse"), ("in", b"worst")]


def test_invalid_utf8_is_a_dead_letter_where_text_is_wanted(folder: Folder) -> None:
    bad = [b'{"n": "\xff\xfe"}', b"\x80\x81", '{"n": 1}'.encode("utf-16-le")]
    folder.write("in.jsonl", b'{"n":1}\n' + b"\n".join(bad) + b'\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP)

    assert folder.run().has(0)
    assert folder.arrived() == [1, 2]
    assert folder.letters() == [("in", line) for line in bad]


def test_invalid_utf8_is_carried_exactly_where_bytes_are_wanted(folder: Folder) -> None:
    content = b"\xff\xfe\xc3\n\n\x00\x80\n"
    folder.write("in.jsonl", content)
    folder.pipeline(
        source='file.Source(path="in.jsonl", format="lines")',
        destination='file.Destination(path="out.txt", format="lines")',
    )

    assert folder.run().has(0)
    assert (folder.path / "out.txt").read_bytes() == content


def test_a_line_that_is_nested_too_deeply_is_a_dead_letter_and_stops_nothing(folder: Folder) -> None:
    """Read as a record, it could be refused later, and then no dead letter could hold it."""
    deep = [b'{"n":%s}' % (opened * depth + b"1" + closed * depth) for opened, closed, depth in NESTED]
    allowed = b'{"n":1,"deep":%s}' % (b"[" * (JSON_DEPTH_MAX - 1) + b"]" * (JSON_DEPTH_MAX - 1))
    folder.write("in.jsonl", b"\n".join([allowed, *deep, b'{"n":2}']) + b"\n")
    head = 'def refuse(record):\n    assert record.payload["n"] == 2\n    return record\n'
    folder.pipeline(processors="[refuse]", dead_letters="DeadLetters.keep(window_size=0)", head=head)
    answer = folder.run()

    assert answer.has(0)
    assert f"{len(deep) + 1} dead letters" in answer.stdout
    assert "is nested more than # deep (4 of them)" in answer.stderr
    assert folder.arrived() == [2]


NESTED = [(b"[", b"]", JSON_DEPTH_MAX), (b"[", b"]", 500), (b'{"a":', b"}", 500), (b'[{"a":', b"}]", 450)]


@pytest.mark.slow
def test_a_line_of_50_megabytes_is_a_dead_letter_in_bounded_memory(folder: Folder) -> None:
    folder.pipeline(dead_letters=KEEP)
    peaks = [peak_memory(folder, size) for size in (50 * MEGABYTE, 200 * MEGABYTE)]

    assert abs(peaks[0] - peaks[1]) < 16 * MEGABYTE
    assert folder.arrived() == [1, 2, 1, 2]
    for letter, size in zip(folder.lines("dead.jsonl"), (50 * MEGABYTE, 200 * MEGABYTE), strict=True):
        assert letter["error"].startswith(f"the line has {size} bytes, more than line_size_max")
        # The rest is not lost: the position says where in the file the line ends.
        assert base64.b64decode(letter["position"]).endswith(b":%d" % (len(b'{"n":1}\n') + size + 1))
        assert payload_of(letter) == bytes(1024)


def peak_memory(folder: Folder, size: int) -> int:
    """Run with one line of this size in the input; the most memory that the process had."""
    file = folder.write("in.jsonl", b'{"n":1}\n')
    with file.open("r+b") as grown:
        grown.seek(size, os.SEEK_END)
        grown.write(b'\n{"n":2}\n')
    with (folder.path / "said").open("wb") as said:
        process = subprocess.Popen([COMMAND, "run", "p.py", "--fresh"], cwd=folder.path, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (folder.path / "said").read_text()
    return usage.ru_maxrss * 1024


@pytest.mark.slow
def test_a_line_of_50_megabytes_arrives_when_it_is_allowed(folder: Folder) -> None:
    text = "x" * 50 * MEGABYTE
    folder.write("in.jsonl", json.dumps({"n": text}, separators=(",", ":")) + "\n")
    folder.pipeline(source=f'file.Source(path="in.jsonl", format="json", line_size_max={64 * MEGABYTE})')

    assert folder.run().has(0)
    assert folder.lines() == [{"n": text}]


# Files that are not there, or not files.
