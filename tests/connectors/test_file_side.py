"""Large transactions of the file destination: what waits beside the file, and what becomes of it after any end."""

import errno
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from conduit_connectors import file
from conduit_connectors.file.appender import Appender
from conduit_connectors.file.marker import marker_path, side_path
from conduit_connectors.file.staging import Staging
from hypothesis import given, settings
from hypothesis import strategies as st
from warm_python import run_warm

from conduit_py.sdk import FatalError, Record, TransientError
from conduit_py.testing.connector_driver import batch_of

WithFailingCall = Callable[[str, int, Callable[[], None]], None]
LINES = [b"%05d\n" % number for number in range(1000)]


class Run:
    """A process that appends to a file, with every transaction in a side file by default."""

    def __init__(self, path: Path, *intents: bytes, inline_max: int = 0) -> None:
        self.appender = Appender(path)
        self.staging = Staging(self.appender, inline_max)
        try:
            self.staging.recover(intents)
        except FatalError:
            self.stop()
            raise

    def staged(self, *pieces: bytes) -> bytes:
        self.staging.add(pieces)
        intent = self.staging.stage()
        assert intent is not None
        return intent

    def stop(self) -> None:
        self.staging.close()
        self.appender.close()

    def vanish(self) -> None:
        """What the system does when a process is killed: it closes its files, and nothing is removed."""
        self.appender.promise()
        self.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


def left_behind(path: Path, *pieces: bytes) -> bytes:
    """The intent of a transaction that was committed and not applied."""
    run = Run(path)
    intent = run.staged(*pieces)
    run.vanish()
    return intent


def test_lines_are_written_as_they_come_and_the_intent_only_names_them(path: Path) -> None:
    run = Run(path)
    run.staging.add(LINES)

    assert side_path(path).read_bytes() == b"".join(LINES)
    assert run.staging.size() == 6000
    assert path.read_bytes() == b""
    intent = run.staging.stage()
    assert intent is not None
    assert len(intent) < 20
    run.staging.apply(intent)
    assert path.read_bytes() == b"".join(LINES)
    run.stop()


def test_a_transaction_goes_beside_the_file_when_it_has_grown_too_large_for_its_intent(path: Path) -> None:
    run = Run(path, inline_max=9)
    run.staging.add([b"one\n"])
    run.staging.add([b"four\n"])
    assert not side_path(path).exists()
    run.staging.add([b"x\n"])
    assert side_path(path).read_bytes() == b"one\nfour\nx\n"
    run.staging.add([b"y\n"])
    intent = run.staging.stage()
    assert intent is not None
    assert side_path(path).read_bytes() == b"one\nfour\nx\ny\n"

    run.staging.apply(intent)
    assert path.read_bytes() == b"one\nfour\nx\ny\n"
    run.staging.apply(run.staged(b"two\n"))
    assert path.read_bytes() == b"one\nfour\nx\ny\ntwo\n"
    run.stop()
    assert os.listdir(path.parent) == ["out"]


def test_an_intent_of_a_version_without_side_files_is_applied(path: Path) -> None:
    path.write_bytes(b"before\n")
    left_behind(path, b"of a later one, not committed\n")

    Run(path, msgspec.msgpack.encode((7, b"one\ntwo\n"))).stop()

    assert path.read_bytes() == b"before\none\ntwo\n"


def test_a_version_without_side_files_cannot_take_an_intent_for_one_of_its_own(path: Path) -> None:
    small, large = Run(path, inline_max=9), Run(path.with_name("other"))

    assert msgspec.msgpack.decode(small.staged(b"one\n"), type=tuple[int, bytes]) == (0, b"one\n")
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(large.staged(b"one\n"), type=tuple[int, bytes])


@pytest.mark.parametrize("staged", [False, True])
def test_what_was_not_committed_is_discarded_when_it_begins_again(path: Path, staged: bool) -> None:
    first = Run(path)
    committed = first.staged(b"one\n")
    first.staging.apply(committed)
    first.staging.add([b"never\n"])
    if staged:
        first.staging.stage()
    first.vanish()
    assert side_path(path).read_bytes() == b"never\n"

    second = Run(path, committed)
    assert not side_path(path).exists()
    second.staging.apply(second.staged(b"two\n"))
    second.stop()

    assert path.read_bytes() == b"one\ntwo\n"


def test_a_run_that_ends_before_its_commit_leaves_nothing_behind(path: Path) -> None:
    run = Run(path)
    run.staging.add([b"never\n"])
    run.stop()

    assert os.listdir(path.parent) == ["out"]
    assert path.read_bytes() == b""


def test_a_run_that_ends_after_its_commit_and_does_not_apply_leaves_it_to_the_next(path: Path) -> None:
    run = Run(path)
    intent = run.staged(b"one\n")
    run.stop()

    Run(path, intent).stop()

    assert path.read_bytes() == b"one\n"


def test_after_a_power_failure_only_what_is_missing_is_appended(path: Path) -> None:
    run = Run(path)
    intent = run.staged(*LINES)
    note = marker_path(path).read_bytes()[:160]
    run.staging.apply(intent)
    run.vanish()
    # Another boot, with the mark of an earlier batch; whole lines of the transaction were kept, and a torn one.
    os.truncate(path, 2345)
    note = note.replace(note.split()[6], bytes(reversed(note.split()[6])))
    marker_path(path).write_bytes(b"%s%08x\n" % (note, zlib.crc32(note)))

    Run(path, intent).stop()

    assert path.read_bytes() == b"".join(LINES)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (None, "is missing"),
        (b"", "has only 0 bytes"),
        (b"one\ntw", "has only 6 bytes"),
        (b"one\nTWO\n", "has something else in it"),
    ],
)
def test_a_committed_side_file_that_is_not_as_it_was_is_named_and_nothing_is_lost_silently(
    path: Path, left: bytes | None, said: str
) -> None:
    intent = left_behind(path, b"one\n", b"two\n")
    side = side_path(path)
    side.rename(path.with_name("kept"))
    if left is not None:
        side.write_bytes(left)

    for _ in range(2):
        with pytest.raises(FatalError) as raised:
            Run(path, intent)
        assert raised.value.message == (
            f"{side} {said}, but the last transaction is committed and 8 bytes of it were left there, "
            "to be appended to out"
        )
    assert path.read_bytes() == b""
    assert raised.value.suggestion is not None
    assert raised.value.suggestion.startswith("put .out.conduit-staged back as it was when the pipeline ended")
    path.with_name("kept").rename(side)
    Run(path, intent).stop()
    assert path.read_bytes() == b"one\ntwo\n"


def test_who_removes_the_marker_as_advised_goes_on_without_the_lines(path: Path) -> None:
    intent = left_behind(path, b"one\n")
    side_path(path).unlink()
    with pytest.raises(FatalError, match="is missing") as raised:
        Run(path, intent)
    assert "if it is lost, remove .out.conduit to go on" in str(raised.value.suggestion)
    marker_path(path).unlink()

    run = Run(path, intent)
    run.staging.apply(run.staged(b"two\n"))
    run.stop()

    assert path.read_bytes() == b"two\n"


def test_the_side_file_is_not_needed_when_the_lines_are_in_their_place(path: Path) -> None:
    run = Run(path)
    intent = run.staged(b"one\n")
    run.staging.apply(intent)
    run.vanish()
    side_path(path).unlink()

    Run(path, intent).stop()

    assert path.read_bytes() == b"one\n"


def test_lines_of_others_in_their_place_are_not_taken_for_them(path: Path) -> None:
    intent = left_behind(path, b"one\n")
    path.write_bytes(b"two\n")

    with pytest.raises(FatalError, match="4 bytes of the last transaction belong at 0, but there is something else"):
        Run(path, intent)
    assert side_path(path).read_bytes() == b"one\n"


# What is written is given in steps: a size limit, then what to do under it.
LIMITED = """
import os, resource, sys
from pathlib import Path
from conduit_connectors.file.appender import Appender
from conduit_connectors.file.staging import Staging
from conduit_py.sdk import TransientError

path, when = Path(sys.argv[1]), sys.argv[2]

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def opened(*intents):
    appender = Appender(path)
    staging = Staging(appender, 0)
    staging.recover(intents)
    return appender, staging

def fails(call, *given):
    try:
        call(*given)
    except TransientError as error:
        print(error.message)
        print(error.suggestion)

appender, staging = opened()
staging.add([b"1" * 399 + b"\\n"])
if when == "written":
    limit(500)
    fails(staging.add, [b"2" * 50, b"2" * 349 + b"\\n"])
    print(staging.size(), path.with_name(".out.conduit-staged").stat().st_size)
    limit(resource.RLIM_INFINITY)
    staging.add([b"3" * 399 + b"\\n"])
    staging.apply(staging.stage())
else:
    staging.apply(staging.stage())
    staging.add([b"3" * 399 + b"\\n"])
    intent = staging.stage()
    limit(500)
    fails(staging.apply, intent)
    print(path.stat().st_size)
    staging.close()
    appender.close()
    limit(resource.RLIM_INFINITY)
    appender, staging = opened(intent)
staging.close()
appender.close()
"""


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (
            "written",
            [
                "cannot write 400 bytes to {side}: File too large; nothing of them was kept",
                "raise the quota or the file size limit of the user that writes {side}",
                "400 400",
            ],
        ),
        (
            "applied",
            [
                "cannot append 400 bytes to {path}: File too large; nothing of them was kept",
                "raise the quota or the file size limit of the user that writes {path}",
                "400",
            ],
        ),
    ],
)
def test_what_does_not_fit_is_taken_back_and_can_be_written_again(path: Path, when: str, said: list[str]) -> None:
    run = run_warm([sys.executable, "-c", LIMITED, path, when], check=True)

    assert run.stdout.splitlines() == [line.format(path=path, side=side_path(path)) for line in said]
    assert path.read_bytes() == b"1" * 399 + b"\n" + b"3" * 399 + b"\n"
    assert os.listdir(path.parent) == ["out"]


def test_after_a_failed_sync_nothing_is_claimed(path: Path, with_failing_call: WithFailingCall) -> None:
    run = Run(path)
    run.staging.add([b"doubtful\n"])

    def fail_to_sync() -> None:
        with pytest.raises(TransientError, match="conduit-staged could not be made durable: Input/output error"):
            run.staging.stage()

    with_failing_call("fdatasync", errno.EIO, fail_to_sync)
    # The disk works again, but what it dropped does not come back.
    for call in (run.staging.stage, lambda: run.staging.add([b"more\n"])):
        with pytest.raises(TransientError, match="it must be opened again"):
            call()
    run.stop()

    assert os.listdir(path.parent) == ["out"]


def test_a_side_file_deleted_while_it_is_written_is_noticed_before_the_commit(path: Path) -> None:
    run = Run(path)
    run.staging.add([b"one\n"])
    side_path(path).unlink()

    with pytest.raises(TransientError, match="conduit-staged was deleted while it was being written"):
        run.staging.stage()
    run.stop()


def test_a_side_file_that_cannot_be_created_is_reported(path: Path) -> None:
    run = Run(path)
    side_path(path).write_bytes(b"somebody else's\n")

    with pytest.raises(TransientError, match=r"cannot create .*conduit-staged, where lines wait .*: File exists"):
        run.staging.add([b"one\n"])
    run.stop()


def test_a_side_file_whose_name_is_not_durable_is_not_used(path: Path, with_failing_call: WithFailingCall) -> None:
    run = Run(path)

    def fail_to_create() -> None:
        with pytest.raises(TransientError, match="where lines wait for their commit: Input/output error"):
            run.staging.add([b"one\n"])

    with_failing_call("fsync", errno.EIO, fail_to_create)
    assert not side_path(path).exists()
    run.staging.apply(run.staged(b"one\n"))
    run.stop()

    assert path.read_bytes() == b"one\n"


def test_lines_that_wait_are_as_secret_as_the_file(path: Path) -> None:
    path.touch(0o640)
    path.chmod(0o640)
    run = Run(path)
    run.staging.add([b"one\n"])

    assert side_path(path).stat().st_mode & 0o777 == 0o640
    run.stop()


def test_a_run_at_least_once_in_between_clears_up_when_it_ends(path: Path) -> None:
    left_behind(path, b"one\n")
    destination = file.Destination(path=path, format="lines")
    destination.open()
    destination.write(batch_of([Record.of(b"two", position=b"0")]))
    destination.flush()
    destination.teardown()

    assert os.listdir(path.parent) == ["out"]
    assert path.read_bytes() == b"two\n"


def test_the_header_of_a_large_table_is_written_once(path: Path) -> None:
    destination = file.Destination(path=path, format="csv")
    destination.open()
    destination.begin("p", 1, [])
    for text in ("a" * 200_000, "b"):
        destination.write(batch_of([Record.of({"text": text}, position=text.encode())]))
    intent = destination.stage()
    assert intent is not None
    assert side_path(path).stat().st_size == 200_008
    destination.apply(intent)
    destination.teardown()

    assert path.read_bytes() == b"text\n" + b"a" * 200_000 + b"\nb\n"


LINE = st.binary(max_size=12).map(lambda text: text.hex().encode() + b"\n")
WRITTEN = st.lists(st.lists(LINE, min_size=1, max_size=3), min_size=1)
ENDS = st.sampled_from(["goes on", "stops", "killed before stage", "before commit", "before apply", "after apply"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(WRITTEN, ENDS), max_size=8), st.sampled_from([0, 20, 50, 10_000]))
def test_whatever_happens_readers_see_what_was_committed_once_in_order(
    transactions: list[tuple[list[list[bytes]], str]], inline_max: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out")
        committed, intents, run = b"", list[bytes](), Run(path, inline_max=inline_max)
        for batches, end in transactions:
            for pieces in batches:
                run.staging.add(pieces)
            intent = run.staging.stage() if end != "killed before stage" else None
            assert path.read_bytes() == committed
            if intent is not None and end != "before commit":
                intents, committed = [intent], committed + b"".join(piece for pieces in batches for piece in pieces)
                if end != "before apply":
                    run.staging.apply(intent)
            if end != "goes on":
                (run.stop if end == "stops" else run.vanish)()
                run = Run(path, *intents, inline_max=inline_max)
            assert path.read_bytes() == committed
        run.stop()
        assert (path.read_bytes(), os.listdir(folder)) == (committed, ["out"])
