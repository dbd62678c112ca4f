"""Where a tailing file source starts: durable before the first read, and found again after a rotation."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conduit_connectors import file
from waiting import until
from warm_python import COMMAND, WarmPython

from conduit_py.sdk import FatalError, NothingYet, Reading

LINES = [f"line {number}" for number in range(1000)]
PIPELINE = """\
import time
from pathlib import Path
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source, processor

@processor
def hold(record):
    Path("reached").touch()
    while Path("hold").exists():
        time.sleep(0.01)
    return record

pipeline = Pipeline(
    "p",
    sources=[Source("in", file.Source(path="app.log", tail=True))],
    processors=[hold],
    destinations=[Destination("out", file.Destination(path="out", format="lines"))],
    delivery="{delivery}",
)
"""


def move(log: Path) -> None:
    log.rename(log.with_name("app.log.1"))
    log.write_text("new\n")


def move_twice(log: Path) -> None:
    log.rename(log.with_name("app.log.2"))
    os.utime(log.with_name("app.log.2"), (1_000_000_000, 1_000_000_000))
    log.with_name("app.log.1").write_text("between\n")
    log.write_text("new\n")


def copy_and_truncate(log: Path) -> None:
    shutil.copyfile(log, log.with_name("app.log.1"))
    log.write_text("new\n")


def read_lines(source: file.Source) -> list[str]:
    found: list[str] = []
    waits = 0
    while waits < 2:
        try:
            reading = source.read(100)
        except NothingYet:
            waits += 1
        else:
            assert not isinstance(reading, Reading)
            found += [record.payload.after.decode() for record in reading if isinstance(record.payload.after, bytes)]
            waits = 0
    source.teardown()
    return found


def start(log: Path) -> bytes:
    """Open a source for the first time, and return where it starts; nothing is committed after that."""
    source = file.Source(path=log, tail=True)
    source.open(None)
    position = source.start_position()
    source.teardown()
    assert position is not None
    return position


def restart(log: Path, position: bytes) -> list[str]:
    source = file.Source(path=log, tail=True)
    source.open(position)
    return read_lines(source)


@pytest.mark.parametrize(
    ("rotate", "after"), [(move, ["new"]), (move_twice, ["between", "new"]), (copy_and_truncate, ["new"])]
)
@pytest.mark.parametrize("content", ["old\n", "old\n" * 1000, "half"])
def test_a_log_rotated_before_the_first_commit_is_read_whole(
    tmp_path: Path, rotate: Callable[[Path], None], after: list[str], content: str
) -> None:
    log = tmp_path / "app.log"
    log.write_text(content)
    position = start(log)

    rotate(log)

    assert restart(log, position) == [*content.split(), *after]


@pytest.mark.parametrize("rotate", [move, copy_and_truncate])
@pytest.mark.parametrize("there", [True, False])
def test_lines_that_came_after_the_start_are_found_in_the_rotated_file(
    tmp_path: Path, rotate: Callable[[Path], None], there: bool
) -> None:
    log = tmp_path / "app.log"
    log.with_name("app.log.7").write_text("rotated before the start\n")
    os.utime(log.with_name("app.log.7"), (1_000_000_000, 1_000_000_000))
    if there:
        log.touch()
    position = start(log)

    log.write_text("old\n")
    rotate(log)

    assert restart(log, position) == ["old", "new"]


def test_a_file_that_stayed_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    position = start(log)
    log.with_name("app.log.1").write_text("one\nof another time\n")

    assert restart(log, position) == ["one"]


def test_a_log_that_is_gone_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "app.log"
    log.write_text("old\n")
    position = start(log)

    log.unlink()
    log.write_text("new\n")
    os.utime(log)

    assert restart(log, position) == ["new"]
    assert "lines after byte 0 of it may have been missed" in caplog.text


def test_only_a_tailing_source_has_a_start_to_remember(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\n")
    source = file.Source(path=tmp_path / "in")
    source.open(None)

    assert source.start_position() is None
    source.teardown()


def test_a_start_is_understood_when_the_source_does_not_tail_any_more(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    position = start(log)
    source = file.Source(path=log)
    source.open(position)

    [record] = source.read(10)  # type: ignore[misc]  # nothing is refused, so it is a list

    assert record.payload.after == b"one"
    source.teardown()
    log.unlink()
    with pytest.raises(FatalError, match="there is no file"):
        file.Source(path=log).open(position)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_run_killed_before_its_first_commit_has_lost_nothing(tmp_path: Path, delivery: str) -> None:
    log, out = tmp_path / "app.log", tmp_path / "out"
    log.write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "hold").touch()
    (tmp_path / "p.py").write_text(PIPELINE.replace("{delivery}", delivery))
    command = [str(COMMAND), "run", "p.py", "--state", "state"]
    with WarmPython(command, cwd=tmp_path) as first:
        await until((tmp_path / "reached").exists)
        first.kill()

    move(log)
    (tmp_path / "hold").unlink()
    with WarmPython(command, cwd=tmp_path) as second:
        await until(lambda: out.exists() and out.read_text().endswith("new\n"))
        second.terminate()

    assert out.read_text().splitlines() == [*LINES, "new"]
