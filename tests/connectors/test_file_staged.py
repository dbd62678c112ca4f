"""The file destination in an exactly-once pipeline: what is in the file after any end, and what it refuses to guess."""

import os
from pathlib import Path

import pytest
from builders import batch_of
from conduit_connectors import file

from conduit_py.batch import Batch, Span
from conduit_py.sdk import FatalError, Record

SMALL = (b"one", b"two")
LARGE = (b"1" * 100_000, b"2" * 100_000)
"""One that its intent does not carry: it waits beside the file."""
BOTH = pytest.mark.parametrize("lines", [SMALL, LARGE], ids=["small", "large"])
TORN = [(SMALL, torn) for torn in range(9)]
TORN += [(LARGE, torn) for torn in (0, 1, 99_999, 100_000, 100_001, 100_002, 200_001, 200_002)]


def text(lines: tuple[bytes, ...]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def opened(path: Path, *intents: bytes) -> file.Destination:
    destination = file.Destination(path=path, format="lines")
    destination.open()
    destination.begin("p", 1, intents)
    return destination


def staged(path: Path, lines: tuple[bytes, ...], torn: int | None = None) -> bytes:
    """A transaction that was committed and not applied; the process is gone, and nothing is torn down.

    With `torn` it was killed when it had applied so many bytes.
    """
    destination = opened(path)
    for line in lines:
        destination.write(batch_of(line))
    intent = destination.stage()
    assert intent is not None
    if torn is not None:
        destination.apply(intent)
        os.truncate(path, torn)
    vanish(destination)
    return intent


def vanish(destination: file.Destination) -> None:
    """What the system does when a process is killed: it closes its files."""
    assert destination._appender is not None
    destination._appender.promise()
    destination.teardown()


@BOTH
def test_i4_nothing_is_seen_before_the_commit(tmp_path: Path, lines: tuple[bytes, ...]) -> None:
    staged(tmp_path / "out", lines)

    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize(("lines", "torn"), TORN)
def test_i8_what_was_committed_is_there_once_wherever_the_process_was_killed(
    tmp_path: Path, lines: tuple[bytes, ...], torn: int
) -> None:
    path = tmp_path / "out"
    intent = staged(path, lines, torn)

    for _ in range(2):
        vanish(opened(path, intent))
    opened(path, intent).teardown()

    assert path.read_bytes() == text(lines)
    assert os.listdir(tmp_path) == ["out"]


@BOTH
def test_applying_again_changes_nothing_even_after_more_was_written(tmp_path: Path, lines: tuple[bytes, ...]) -> None:
    path = tmp_path / "out"
    destination = opened(path)
    destination.write(batch_of(*lines))
    first = destination.stage()
    assert first is not None
    destination.apply(first)
    destination.write(batch_of(*reversed(lines)))
    second = destination.stage()
    assert second is not None
    destination.apply(second)

    destination.apply(first)
    assert path.read_bytes() == text(lines) + text(lines[::-1])


def test_nothing_written_is_nothing_to_apply(tmp_path: Path) -> None:
    assert opened(tmp_path / "out").stage() is None


@BOTH
def test_the_file_may_be_moved_away_after_an_orderly_stop(tmp_path: Path, lines: tuple[bytes, ...]) -> None:
    path = tmp_path / "out"
    destination = opened(path)
    destination.write(batch_of(*lines))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    destination.teardown()
    path.rename(tmp_path / "archived")

    opened(path, intent).teardown()

    assert path.read_bytes() == b""


@BOTH
def test_a_run_that_got_no_further_than_open_leaves_the_repair_to_the_next(
    tmp_path: Path, lines: tuple[bytes, ...]
) -> None:
    path = tmp_path / "out"
    intent = staged(path, lines)
    destination = file.Destination(path=path, format="lines")
    destination.open()
    destination.teardown()

    opened(path, intent).teardown()

    assert path.read_bytes() == text(lines)


@BOTH
@pytest.mark.parametrize(
    ("left", "said"), [(b"", "it is shorter than that"), (b"one\nsomebody else\n", "there is something else")]
)
def test_a_file_that_changed_after_a_crash_is_named_and_left_alone(
    tmp_path: Path, left: bytes, said: str, lines: tuple[bytes, ...]
) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before\n")
    intent = staged(path, lines)
    path.write_bytes(left if not left else b"before\n" + left)
    before = path.read_bytes()

    with pytest.raises(FatalError, match=said):
        opened(path, intent)
    assert path.read_bytes() == before


def test_the_header_of_a_table_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    destination = file.Destination(path=path, format="csv")
    destination.open()
    destination.begin("p", 1, [])
    for n in (1, 2):
        destination.write(Batch.whole(Span("p", "s", n, [b"%d" % n]), [Record.of({"n": n})]))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    destination.teardown()

    assert path.read_bytes() == b"n\n1\n2\n"
