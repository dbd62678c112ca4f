"""The file destination and everything that can go wrong on a disk: a batch is in the file in full or not at all."""

import errno
import logging
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conduit_connectors import file
from conduit_connectors.file.marker import marker_path
from warm_python import run_warm

from conduit_py.record import Record
from conduit_py.sdk import FatalError, TransientError
from conduit_py.testing.connector_driver import batch_of

WithFailingCall = Callable[[str, int, Callable[[], None]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def opened(path: Path) -> Iterator[file.Destination]:
    destination = file.Destination(path=path, format="lines")
    destination.open()
    yield destination
    destination.teardown()


def append(destination: file.Destination, *lines: bytes) -> None:
    records = [Record.of(line, position=b"%d" % number) for number, line in enumerate(lines)]
    assert destination.write(batch_of(records)) == {}


def run_once(path: Path, *lines: bytes) -> None:
    """A run that ends in an orderly way."""
    destination = file.Destination(path=path, format="lines")
    destination.open()
    append(destination, *lines)
    destination.flush()
    destination.teardown()


# The first line is longer than the marker, which the limit on the size of files must not hit.
ONE = b"1" * 399 + b"\n"

# Appends ONE durably, then a batch of 100 lines that ends the process: halfway, or after it was written.
CHILD = """
import os, resource, signal, sys
from conduit_connectors import file
from conduit_py.sdk import Record
from conduit_py.testing.connector_driver import batch_of

path, how, size_max = sys.argv[1], sys.argv[2], int(sys.argv[3])
destination = file.Destination(path=path, format="lines")
destination.open()
destination.write(batch_of([Record.of(b"1" * 399, position=b"0")]))
destination.flush()
if how == "halfway":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, size_max))
batch = batch_of([Record.of(b"line %d" % n, position=b"%d" % n) for n in range(100)])
destination.write(batch)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(path: Path, how: str, size_max: int = 0) -> None:
    child = run_warm([sys.executable, "-c", CHILD, path, how, str(size_max)])
    assert child.returncode == -(signal.SIGXFSZ if how == "halfway" else signal.SIGKILL)


@pytest.mark.parametrize("torn", [1, 6, 7, 8, 600])
def test_a_batch_cut_short_by_a_crash_is_taken_back_by_the_next_run(
    torn: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crash(path, "halfway", len(ONE) + torn)
    assert path.stat().st_size == len(ONE) + torn

    run_once(path, b"two")

    assert path.read_bytes() == ONE + b"two\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: removing {torn} bytes that an interrupted run left half written"
    ]
    assert os.listdir(path.parent) == ["out"]


def test_a_batch_written_in_full_before_a_crash_stays(path: Path) -> None:
    crash(path, "after")
    assert marker_path(path).exists()

    run_once(path, b"two")

    lines = path.read_bytes().splitlines()
    assert lines == [ONE[:-1], *(b"line %d" % number for number in range(100)), b"two"]
    assert not marker_path(path).exists()


def test_what_others_appended_after_a_crash_stays_even_without_a_line_end(path: Path) -> None:
    crash(path, "after")
    with path.open("ab") as other:
        other.write(b"theirs")

    run_once(path, b"two")

    assert path.read_bytes().endswith(b"line 99\ntheirs\ntwo\n")


def test_a_file_of_others_is_never_cut_and_its_open_last_line_is_ended(path: Path) -> None:
    path.write_bytes(b"theirs\nno line end")

    run_once(path, b"ours")

    assert path.read_bytes() == b"theirs\nno line end\nours\n"


def test_the_mark_of_a_crash_does_not_count_for_another_file_in_its_place(path: Path) -> None:
    crash(path, "halfway", 500)
    path.with_name("new").write_bytes(b"x" * 450)
    path.with_name("new").rename(path)

    run_once(path, b"ours")

    assert path.read_bytes() == b"x" * 450 + b"\nours\n"


def test_a_mark_that_is_torn_itself_is_not_believed(path: Path) -> None:
    crash(path, "halfway", 500)
    note = marker_path(path).read_bytes()
    assert note.split()[4:6] == [b"400", b"790"]
    marker_path(path).write_bytes(note.replace(b" 400 790 ", b" 400 999 "))

    run_once(path, b"ours")

    assert path.read_bytes().startswith(ONE + b"line 0\n")


def lose_power(path: Path, content: bytes) -> None:
    """Leave what a power failure may: the mark of an earlier batch, and a file that ends anywhere after it."""
    crash(path, "halfway", 500)
    # Another boot, with a checksum that fits.
    text = marker_path(path).read_bytes()[:160]
    boot = text.split()[6]
    text = text.replace(boot, bytes(reversed(boot)))
    marker_path(path).write_bytes(b"%s%08x\n" % (text, zlib.crc32(text)))
    with path.open("r+b") as rewritten:
        rewritten.truncate()
        rewritten.write(content)


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (ONE + b"line\n" * 300 + b"li", ONE + b"line\n" * 300),
        (ONE + b"line\n" * 300, ONE + b"line\n" * 300),
        (ONE + b"x" * 200_000, ONE),
        (ONE, ONE),
        (b"less\n", b"less\n"),
        (ONE[:-2] + b"2\nanother file", ONE[:-2] + b"2\nanother file\n"),
    ],
    ids=["torn", "whole", "torn at once", "nothing", "less", "another with the same inode"],
)
def test_after_a_power_failure_a_torn_last_line_is_cut_off(left: bytes, kept: bytes, path: Path) -> None:
    lose_power(path, left)

    run_once(path, b"two")

    assert path.read_bytes() == kept + b"two\n"


# Two batches: the second does not fit, and is written once the limit is raised.
LIMITED = """
import resource, sys
from conduit_connectors import file
from conduit_py.sdk import Record, TransientError
from conduit_py.testing.connector_driver import batch_of

path = sys.argv[1]
destination = file.Destination(path=path, format="lines")
destination.open()
destination.write(batch_of([Record.of(b"1" * 399, position=b"0")]))
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
batch = batch_of([Record.of(b"line %d" % n, position=b"%d" % n) for n in range(100)])
try:
    destination.write(batch)
except TransientError as error:
    print(error.message)
    print(error.suggestion)
print(open(path).read().splitlines() == ["1" * 399])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
destination.write(batch)
destination.flush()
destination.teardown()
print(len(open(path).read().splitlines()))
"""


def test_a_batch_that_does_not_fit_is_taken_back_and_can_be_written_again(path: Path) -> None:
    run = run_warm([sys.executable, "-c", LIMITED, path], check=True)

    assert run.stdout.splitlines() == [
        f"cannot append 790 bytes to {path}: File too large; nothing of them was kept",
        f"raise the quota or the file size limit of the user that writes {path}",
        "True",
        "101",
    ]
    assert os.listdir(path.parent) == ["out"]


def test_a_full_disk_is_transient_and_says_what_is_left(opened: file.Destination) -> None:
    append(opened, b"one")
    assert opened._appender is not None
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), opened._appender._fd)

    with pytest.raises(TransientError) as raised:
        append(opened, b"two")

    assert "No space left on device; nothing of them was kept" in raised.value.message
    assert raised.value.suggestion is not None
    assert raised.value.suggestion.startswith("free some space on the disk of ")
    assert raised.value.suggestion.endswith(" bytes are left")


def test_a_batch_that_cannot_be_taken_back_is_taken_back_by_the_next_run(
    path: Path, with_failing_call: WithFailingCall
) -> None:
    crash(path, "halfway", 500)

    def open_again() -> None:
        with pytest.raises(TransientError, match=f"cannot get {path} ready for appending: Input/output error"):
            file.Destination(path=path, format="lines").open()

    with_failing_call("ftruncate", errno.EIO, open_again)
    assert path.stat().st_size == 500
    run_once(path, b"two")

    assert path.read_bytes() == ONE + b"two\n"


def test_after_a_failed_sync_nothing_is_claimed_and_what_was_not_durable_is_removed(
    path: Path, with_failing_call: WithFailingCall
) -> None:
    destination = file.Destination(path=path, format="lines")
    destination.open()
    append(destination, b"durable")
    destination.flush()

    def fail_to_sync() -> None:
        append(destination, b"doubtful")
        with pytest.raises(TransientError, match="could not be made durable: Input/output error"):
            destination.flush()

    with_failing_call("fdatasync", errno.EIO, fail_to_sync)
    # The disk works again, but this handle must not be believed any more.
    for call in (destination.flush, lambda: append(destination, b"more")):
        with pytest.raises(TransientError, match="it must be opened again"):
            call()
    destination.teardown()

    assert path.read_bytes() == b"durable\n"
    run_once(path, b"doubtful")
    assert path.read_bytes() == b"durable\ndoubtful\n"


@pytest.mark.parametrize("then", [[], [b"ours too"]])
def test_after_a_failed_sync_what_others_appended_is_not_removed(
    then: list[bytes], path: Path, opened: file.Destination, with_failing_call: WithFailingCall
) -> None:
    append(opened, b"ours")
    with path.open("ab") as other:
        other.write(b"theirs\n")
    for line in then:
        append(opened, line)

    def fail_to_sync() -> None:
        with pytest.raises(TransientError, match="could not be made durable"):
            opened.flush()

    with_failing_call("fdatasync", errno.EIO, fail_to_sync)

    assert path.read_bytes() == b"ours\ntheirs\n"


def test_a_file_deleted_while_it_is_written_is_noticed_before_anything_is_acked(
    path: Path, opened: file.Destination
) -> None:
    append(opened, b"one")
    path.unlink()

    with pytest.raises(TransientError, match=f"{path} was deleted while it was being written"):
        opened.flush()


def test_a_second_destination_on_the_same_file_is_an_error(path: Path, opened: file.Destination) -> None:
    append(opened, b"first")
    second = file.Destination(path=path.parent / "." / path.name, format="lines")

    with pytest.raises(FatalError, match=f"{path} is being written by another destination or process"):
        second.open()
    second.teardown()
    opened.flush()

    assert path.read_bytes() == b"first\n"
    assert marker_path(path).exists()


def test_another_process_on_the_same_file_is_an_error(path: Path, opened: file.Destination) -> None:
    run = run_warm([sys.executable, "-c", CHILD, path, "after", "0"])

    assert run.returncode == 1
    assert f"FatalError: {path} is being written by another destination or process" in run.stderr


def test_the_lock_is_free_after_teardown(path: Path) -> None:
    for line in (b"one", b"two"):
        run_once(path, line)

    assert path.read_bytes() == b"one\ntwo\n"


def test_a_run_that_is_torn_down_unflushed_leaves_its_mark_and_its_lines(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    destination = file.Destination(path=path, format="lines")
    destination.open()
    append(destination, b"one")
    destination.teardown()

    assert marker_path(path).exists()
    run_once(path, b"two")
    assert path.read_bytes() == b"one\ntwo\n"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_flush_without_anything_written_does_not_sync(opened: file.Destination) -> None:
    """A pipe in place of the file cannot be synced, so a flush that tried would fail."""
    append(opened, b"one")
    opened.flush()
    assert opened._appender is not None
    reader, writer = os.pipe()
    os.dup2(writer, opened._appender._fd)
    os.close(reader)
    os.close(writer)

    opened.flush()
