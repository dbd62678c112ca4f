"""The stdio connector, on real pipes: lines in, lines out, and readers and writers that go away."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conduit_connectors import stdio

from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading
from conduit_py.testing.connector_driver import batch_of

ReadAll = Callable[..., list[Record]]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue  # the test closed it


def source_on(fd: int, **options: Any) -> stdio.Source:
    source: stdio.Source = type("SourceOnPipe", (stdio.Source,), {"_fd": fd})(**options)
    return source


def destination_on(fd: int, **options: Any) -> stdio.Destination:
    destination: stdio.Destination = type("DestinationOnPipe", (stdio.Destination,), {"_fd": fd})(**options)
    return destination


def records(*payloads: Any) -> list[Record]:
    return [Record.of(payload, position=b"%d" % number) for number, payload in enumerate(payloads)]


def test_lines_are_records_until_the_input_ends(pipe: tuple[int, int], read_all: ReadAll) -> None:
    reader, writer = pipe
    os.write(writer, b"one\n\nthree\r\nlast")
    os.close(writer)

    read = read_all(source_on(reader), n=3)

    assert [record.payload.after for record in read] == [b"one", b"", b"three", b"last"]
    assert [record.position for record in read] == [b"stdio:1:%d" % number for number in (1, 2, 3, 4)]


def test_json_lines_are_payloads_and_what_is_not_json_is_refused(
    pipe: tuple[int, int], read_refused: Callable[..., list[tuple[Any, str]]]
) -> None:
    reader, writer = pipe
    os.write(writer, b'\n{"a": 1}\nnonsense\n{"b": "' + b"x" * 100 + b'"}\n')
    os.close(writer)

    [nonsense, long] = read_refused(source_on(reader, format="json", line_size_max=50))

    assert nonsense[0] == b"nonsense"
    assert nonsense[1].startswith("not valid JSON: ")
    assert long[1] == "the line has 109 bytes, more than line_size_max; only its first 109 bytes are kept here"


def test_line_numbers_go_on_after_a_restart(pipe: tuple[int, int], read_all: ReadAll) -> None:
    reader, writer = pipe
    os.write(writer, b"again\n")
    os.close(writer)

    [record] = read_all(source_on(reader), b"stdio:1:41")

    assert record.position == b"stdio:1:42"
    assert not stdio.Source.resumable


def test_what_is_there_is_returned_without_waiting_for_more(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    source = source_on(reader)
    source.open(None)
    os.write(writer, b"one\nhalf a l")

    reading = source.read(100)
    with pytest.raises(NothingYet):
        source.read(100)
    os.write(writer, b"ine\n")
    rest = source.read(100)
    source.teardown()

    assert not isinstance(reading, Reading)
    assert not isinstance(rest, Reading)
    assert [record.payload.after for record in [*reading, *rest]] == [b"one", b"half a line"]


def test_a_waiting_read_ends_when_stopped(pipe: tuple[int, int]) -> None:
    source = source_on(pipe[0])
    source.open(None)
    ended = threading.Event()

    def wait() -> None:
        while True:
            try:
                source.read(1)
            except NothingYet:
                continue
            except EndOfSource:
                ended.set()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    assert not ended.is_set()
    source.stop()
    thread.join(300)

    assert ended.is_set()
    source.teardown()


def test_a_closed_standard_input_is_an_error() -> None:
    source = source_on(1_000_000)
    source.open(None)

    with pytest.raises(FatalError, match="cannot read standard input: Bad file descriptor"):
        source.read(1)
    source.teardown()


@pytest.mark.parametrize(
    ("format", "payload", "line"),
    [("lines", b"raw", b"raw\n"), ("json", {"a": 1}, b'{"a":1}\n')],
)
def test_records_are_lines(pipe: tuple[int, int], format: str, payload: Any, line: bytes) -> None:
    reader, writer = pipe

    refused = destination_on(writer, format=format).write(batch_of(records(payload, None, payload)))

    assert list(refused) == [1]
    assert os.read(reader, 1000) == 2 * line


def test_whole_records_are_the_default(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    [record] = records({"a": 1})

    assert destination_on(writer).write(batch_of([record])) == {}

    assert os.read(reader, 1000) == record.to_json() + b"\n"


def test_a_reader_that_has_gone_is_an_error_and_not_a_traceback(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)

    with pytest.raises(FatalError) as raised:
        destination_on(writer, format="lines").write(batch_of(records(b"one")))

    assert raised.value.message == "standard output is closed: the program that reads it has ended"


def test_a_slow_reader_of_a_nonblocking_pipe_gets_everything(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    lines = [b"%d" % number + b"x" * 1000 for number in range(300)]
    got: list[bytes] = []

    def read() -> None:
        while chunk := os.read(reader, 4096):
            got.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    destination_on(writer, format="lines").write(batch_of(records(*lines)))
    os.close(writer)
    thread.join(300)

    assert b"".join(got).splitlines() == lines


SCRIPT = """
from conduit_connectors import stdio
from conduit_py.sdk import EndOfSource
from conduit_py.testing.connector_driver import batch_of

source, destination = stdio.Source(format="json"), stdio.Destination(format="json")
source.open(None)
try:
    while True:
        destination.write(batch_of(source.read(10)))
except EndOfSource:
    source.teardown()
"""


def test_it_is_standard_input_and_output() -> None:
    values = [{"n": number} for number in range(100)]
    text = "".join(json.dumps(value) + "\n" for value in values)

    run = subprocess.run([sys.executable, "-c", SCRIPT], input=text, capture_output=True, text=True, check=True)

    assert [json.loads(line) for line in run.stdout.splitlines()] == values
