"""The file source and files that are rotated, truncated or replaced: while it tails, and while it is stopped."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file

from conduit_py.record import Record
from conduit_py.sdk import FatalError, NothingYet, Reading, Records

ReadAll = Callable[..., list[Record]]
LONG = "x" * 1500


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def tailing(log: Path) -> Iterator[file.Source]:
    source = file.Source(path=log, tail=True)
    source.open(None)
    yield source
    source.teardown()


def write(path: Path, text: str, *, mode: str = "a", modified: int | None = None) -> None:
    with path.open(mode) as writer:
        writer.write(text)
    if modified is not None:
        os.utime(path, (modified, modified))


def records_of(reading: Records | Reading) -> list[Record]:
    assert not isinstance(reading, Reading)
    return list(reading)


def lines(source: file.Source) -> list[str]:
    """What there is to read now; a rotated file must be found quiet twice, so twice nothing counts as nothing."""
    found: list[Any] = []
    waits = 0
    while waits < 2:
        try:
            reading = source.read(3)
        except NothingYet:
            waits += 1
        else:
            found += [record.payload.after for record in records_of(reading)]
            waits = 0
    return [raw.decode() for raw in found]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_missing_file_is_waited_for(log: Path, tailing: file.Source) -> None:
    assert lines(tailing) == []

    write(log, "one\n")

    assert lines(tailing) == ["one"]


def test_a_file_moved_away_is_read_to_its_end_before_the_new_one(log: Path, tailing: file.Source) -> None:
    write(log, "one\n")
    assert lines(tailing) == ["one"]

    write(log, "two\nunfinished")
    log.rename(log.with_name("app.log.1"))
    write(log, "three\n")

    assert lines(tailing) == ["two", "unfinished", "three"]


def test_a_file_moved_away_is_followed_while_its_writer_has_not_let_go_of_it(log: Path, tailing: file.Source) -> None:
    write(log, "one\n")
    assert lines(tailing) == ["one"]
    moved = log.with_name("app.log.1")
    log.rename(moved)
    assert lines(tailing) == []

    write(moved, "two\n")
    assert lines(tailing) == ["two"]
    log.touch()
    write(moved, "three\n")
    assert lines(tailing) == ["three"]

    write(log, "four\n")
    with pytest.raises(NothingYet):
        tailing.read(3)
    write(moved, "late\n")
    assert lines(tailing) == ["late", "four"]


def test_every_rotation_since_the_last_look_is_read_in_order(log: Path, tailing: file.Source) -> None:
    write(log, "one\n", modified=1000)
    assert lines(tailing) == ["one"]
    log.rename(log.with_name("app.log.3"))
    for age, text in ((2, "two"), (1, "three")):
        write(log.with_name(f"app.log.{age}"), f"{text}\n", modified=2000 - age)
    write(log, "four\n", modified=3000)
    write(log.with_name("app.log.bak"), "not of this log\n", modified=2500)
    write(log.with_name("app.log.7"), "older, read long ago\n", modified=500)

    assert lines(tailing) == ["two", "three", "four"]


def test_a_compressed_rotation_in_between_is_reported(
    log: Path, tailing: file.Source, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, "one\n", modified=1000)
    assert lines(tailing) == ["one"]
    log.rename(log.with_name("app.log.2"))
    packed = log.with_name("app.log.1.gz")
    write(packed, "gzip", modified=2000)
    write(log, "three\n", modified=3000)

    assert lines(tailing) == ["three"]
    assert set(warnings(caplog)) == {f"{packed} is compressed, so what was not read before its rotation is missed"}


@pytest.mark.parametrize(
    "rewritten",
    ["", "new\n", f"new {LONG}\n" * 2, f"old {LONG[:1200]}\n"],
    ids=["empty", "shorter", "longer", "shorter with the same beginning"],
)
def test_a_file_truncated_without_a_copy_starts_over_with_a_warning(
    rewritten: str, log: Path, tailing: file.Source, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, f"old {LONG}\nhalf")
    assert lines(tailing) == [f"old {LONG}"]

    write(log, rewritten, mode="w")

    assert lines(tailing) == rewritten.splitlines()
    write(log, "more\n")
    assert lines(tailing) == ["more"]
    [warning] = warnings(caplog)
    assert warning == (
        f"{log} was rotated or truncated while it was read, and its old content is not beside it: lines after "
        "byte 1509 of it may have been missed; going on with the file as it is now"
    )


def test_lines_already_read_from_a_truncated_file_are_not_lost(log: Path, tailing: file.Source) -> None:
    write(log, "one\ntwo\nthree\nfour\nha")
    first = tailing.read(1)
    write(log, "new\n", mode="w")

    assert [record.payload.after for record in records_of(first)] == [b"one"]
    assert lines(tailing) == ["two", "three", "four", "new"]


def test_a_file_copied_and_truncated_is_read_on_in_the_copy(
    log: Path, tailing: file.Source, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, f"one {LONG}\nhal")
    assert lines(tailing) == [f"one {LONG}"]

    write(log, "f\ntwo\n")
    shutil.copyfile(log, log.with_name("app.log.1"))
    write(log, "three\n", mode="w")

    assert lines(tailing) == ["half", "two", "three"]
    assert warnings(caplog) == []


def test_lines_already_read_have_positions_in_the_copy(log: Path, tailing: file.Source, read_all: ReadAll) -> None:
    write(log, f"one {LONG}\ntwo\nthree\nfour\n")
    tailing.read(2)
    shutil.copyfile(log, log.with_name("app.log.1"))
    write(log, "five\n", mode="w")

    [three, four] = records_of(tailing.read(3))
    assert [three.payload.after, four.payload.after] == [b"three", b"four"]
    copy = file.Source(path=log.with_name("app.log.1"))
    assert [record.payload.after for record in read_all(copy, three.position)] == [b"four"]
    assert lines(tailing) == ["five"]


@pytest.mark.parametrize("name", ["app.log.1", "app.log-20261116", "anything"])
def test_a_file_moved_away_while_stopped_is_found_by_its_inode(
    name: str, log: Path, read_all: ReadAll, caplog: pytest.LogCaptureFixture
) -> None:
    source = file.Source(path=log, tail=True)
    write(log, "one\ntwo\n", modified=1000)
    [one, _] = read_all(source)
    log.rename(log.with_name(name))
    write(log, "three\n")
    write(log.with_name("app.log.9"), "one\nsame beginning, other file\n", modified=2000)

    source.open(one.position)
    found = lines(source)
    source.teardown()

    assert found == ["two", "one", "same beginning, other file", "three"]
    assert warnings(caplog) == []


def test_a_file_moved_away_while_stopped_is_read_although_nothing_is_in_its_place(log: Path, read_all: ReadAll) -> None:
    source = file.Source(path=log, tail=True)
    write(log, "one\ntwo\n")
    [one, _] = read_all(source)
    log.rename(log.with_name("app.log.1"))
    source.open(one.position)

    assert lines(source) == ["two"]
    write(log, "three\n")
    assert lines(source) == ["three"]
    source.teardown()


def test_a_file_copied_and_truncated_while_stopped_is_read_on_in_the_copy(log: Path, read_all: ReadAll) -> None:
    source = file.Source(path=log, tail=True)
    write(log, f"{LONG}\ntwo\n")
    [one, _] = read_all(source)
    shutil.copyfile(log, log.with_name("app.log.1"))
    write(log, f"three {LONG}\nfour\n", mode="w")

    source.open(one.position)
    found = lines(source)
    source.teardown()

    assert found == ["two", f"three {LONG}", "four"]


def test_an_old_file_that_is_gone_is_reported_and_the_new_one_read_from_its_start(
    log: Path, read_all: ReadAll, caplog: pytest.LogCaptureFixture
) -> None:
    source = file.Source(path=log, tail=True)
    write(log, "one\ntwo\n")
    [_, two] = read_all(source)
    write(log.with_name("new"), "three\n")
    log.with_name("new").rename(log)

    source.open(two.position)
    found = lines(source)
    source.teardown()

    assert found == ["three"]
    [warning] = warnings(caplog)
    assert warning.startswith(
        f"{log} was rotated or truncated since the last run, and its old content is not beside it"
    )
    assert "after byte 8 of it" in warning


def test_a_folder_that_is_gone_is_waited_for(tmp_path: Path, read_all: ReadAll) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    source = file.Source(path=folder / "app.log", tail=True)
    write(folder / "app.log", "one\n")
    [one] = read_all(source)
    shutil.rmtree(folder)

    source.open(one.position)
    assert lines(source) == []
    folder.mkdir()
    write(folder / "app.log", "two\n")
    assert lines(source) == ["two"]
    source.teardown()


def test_each_rotated_csv_file_has_a_header_of_its_own(log: Path) -> None:
    source = file.Source(path=log, tail=True, format="csv")
    write(log, "a,b\n1,2\n")
    source.open(None)
    first = source.read(9)
    log.rename(log.with_name("app.log.1"))
    write(log, "b,c\n3,4\n")
    with pytest.raises(NothingYet):
        source.read(9)
    second = source.read(9)
    source.teardown()

    assert [record.payload.after for record in records_of(first) + records_of(second)] == [
        {"a": "1", "b": "2"},
        {"b": "3", "c": "4"},
    ]


def replaced_by_another(path: Path) -> None:
    path.with_name("new").write_text("other\n" * 10)
    path.with_name("new").rename(path)


def rewritten(path: Path) -> None:
    path.write_text("other\n" * 10)


def truncated(path: Path) -> None:
    path.write_text("one\n")


def deleted(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced_by_another, "{} was replaced: it is not the file that was read up to byte 8"),
        (rewritten, "{} was replaced: it is not the file that was read up to byte 8"),
        (truncated, "{} was truncated: it was read up to byte 8 and now has 4"),
        (deleted, "there is no file {}"),
    ],
)
def test_a_bounded_source_does_not_go_on_in_another_file(
    change: Callable[[Path], None], message: str, log: Path, read_all: ReadAll
) -> None:
    write(log, "one\ntwo\n")
    source = file.Source(path=log)
    [_, two] = read_all(source)
    change(log)

    with pytest.raises(FatalError) as raised:
        source.open(two.position)
    source.teardown()

    assert raised.value.message == message.format(log)
    assert raised.value.suggestion


@pytest.mark.parametrize(("change", "expected"), [(replaced_by_another, 10), (rewritten, 10), (truncated, 1)])
def test_an_export_that_replaces_its_file_is_read_again_if_asked_for(
    change: Callable[[Path], None], expected: int, log: Path, read_all: ReadAll
) -> None:
    write(log, "one\ntwo\n")
    source = file.Source(path=log, on_replaced="reread")
    [_, two] = read_all(source)
    assert read_all(source, two.position) == []

    change(log)

    assert len(read_all(source, two.position)) == expected


def test_a_missing_export_is_an_error_also_if_it_may_be_replaced(log: Path, read_all: ReadAll) -> None:
    write(log, "one\n")
    source = file.Source(path=log, on_replaced="reread")
    [one] = read_all(source)
    log.unlink()

    with pytest.raises(FatalError, match="there is no file"):
        source.open(one.position)
    source.teardown()


def test_a_tailed_file_is_followed_and_not_read_again(log: Path) -> None:
    [problem] = file.Source(path=log, tail=True, on_replaced="reread").problems

    assert "on_replaced goes with tail=False" in str(problem)


def test_a_bounded_source_notices_that_the_file_is_truncated_while_it_is_read(log: Path) -> None:
    write(log, "line\n" * 100_000)
    source = file.Source(path=log)
    source.open(None)
    source.read(10)
    write(log, "line\n", mode="w")

    read = file.Source._block_size
    assert len(records_of(source.read(100_000))) == read // 5 - 10
    with pytest.raises(FatalError, match=f"{log} was truncated: it was read up to byte {read} and now has 5"):
        source.read(10)
    source.teardown()


def test_a_file_rewritten_with_the_same_beginning_is_noticed_by_its_lines_ending_elsewhere(
    log: Path, read_all: ReadAll
) -> None:
    write(log, f"{LONG}\ntwo\n")
    source = file.Source(path=log)
    [one, _] = read_all(source)
    write(log, f"{LONG} and more\nthree\n", mode="w")

    with pytest.raises(FatalError, match="was replaced"):
        source.open(one.position)
    source.teardown()


def test_a_copy_of_the_file_in_its_place_is_another_file(log: Path, read_all: ReadAll) -> None:
    """The same beginning is not enough: a wide header or a banner would make any two files the same."""
    write(log, f"{LONG}\ntwo\n")
    source = file.Source(path=log)
    [one, _] = read_all(source)
    shutil.copyfile(log, log.with_name("copy"))
    log.with_name("copy").rename(log)

    with pytest.raises(FatalError, match="was replaced"):
        source.open(one.position)
    source.teardown()
