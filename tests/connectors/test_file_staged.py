"""The file destination in an exactly-once pipeline: what is in the file after any end, and what it refuses to guess."""

import os
from pathlib import Path

import pytest
from conduit_connectors import file

from conduit_py.batch import Batch, Span
from conduit_py.sdk import FatalError, Record

TRANSACTION = b"one\ntwo\n"


def batch(*lines: bytes) -> Batch:
    span = Span("p", "s", 0, [b"%d" % index for index in range(len(lines))])
    return Batch.whole(span, [Record.of(line) for line in lines])


def opened(path: Path, *intents: bytes) -> file.Destination:
    destination = file.Destination(path=path, format="lines")
    destination.open()
    destination.begin("p", 1, intents)
    return destination


def staged(path: Path) -> bytes:
    """A transaction that was committed and not applied; the process is gone, and nothing is torn down."""
    destination = opened(path)
    destination.write(batch(b"one"))
    destination.write(batch(b"two"))
    intent = destination.stage()
    assert intent is not None
    vanish(destination)
    return intent


def vanish(destination: file.Destination) -> None:
    """What the system does when a process is killed: it closes its files."""
    appender = destination._appender
    assert appender is not None
    appender.promise()
    appender.close()
    destination._appender = None


def test_i4_nothing_is_seen_before_the_commit(tmp_path: Path) -> None:
    staged(tmp_path / "out")

    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize("torn", range(len(TRANSACTION) + 1))
def test_i8_what_was_committed_is_there_once_wherever_the_process_was_killed(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "out"
    intent = staged(path)
    destination = opened(path, intent)
    os.truncate(path, torn)
    vanish(destination)

    for _ in range(2):
        vanish(opened(path, intent))
    opened(path, intent).teardown()

    assert path.read_bytes() == TRANSACTION


def test_applying_again_changes_nothing_even_after_more_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    destination = opened(path)
    destination.write(batch(b"one"))
    first = destination.stage()
    assert first is not None
    destination.apply(first)
    destination.write(batch(b"two"))
    second = destination.stage()
    assert second is not None
    destination.apply(second)

    destination.apply(first)
    assert path.read_bytes() == TRANSACTION


def test_nothing_written_is_nothing_to_apply(tmp_path: Path) -> None:
    assert opened(tmp_path / "out").stage() is None


def test_the_file_may_be_moved_away_after_an_orderly_stop(tmp_path: Path) -> None:
    path = tmp_path / "out"
    destination = opened(path)
    destination.write(batch(b"one"))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    destination.teardown()
    path.rename(tmp_path / "archived")

    opened(path, intent).teardown()

    assert path.read_bytes() == b""


def test_a_run_that_got_no_further_than_open_leaves_the_repair_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out"
    intent = staged(path)
    destination = file.Destination(path=path, format="lines")
    destination.open()
    destination.teardown()

    opened(path, intent).teardown()

    assert path.read_bytes() == TRANSACTION


@pytest.mark.parametrize(
    ("left", "said"), [(b"", "it is shorter than that"), (b"one\nsomebody else\n", "there is something else")]
)
def test_a_file_that_changed_after_a_crash_is_named_and_left_alone(tmp_path: Path, left: bytes, said: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before\n")
    intent = staged(path)
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
