"""Audit and repair: every kind of damage is found, set right, and then readers and writers go on."""

import os
from pathlib import Path

import pytest

from conduit_py.journal.audit import audit, repair
from conduit_py.journal.errors import JournalUnfit
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import FileReader
from conduit_py.journal.segment import bases
from conduit_py.journal.transactions import Publisher, WriterClaim, release_writer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Twenty numbers in several segments; the registers say which was the last."""
    with FileLog(tmp_path / "j", sync="never", segment_size=400) as log:
        for number in range(20):
            log.append([b"%d" % number], union={"last": str(number)})
    return tmp_path / "j"


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


def check_usable(directory: Path, lost: set[int], gaps: int) -> None:
    """After a repair: readers see all but what is lost, get gaps only, and writers append behind."""
    assert audit(directory).sound
    assert [finding for finding in repair(directory) if finding.kind != "unfinished"] == []
    with FileLog(directory, segment_size=400) as log:
        log.append([b"new"], union={"last": "new"})
    reader = FileReader(directory)
    numbers = [str(number).encode() for number in range(20) if number not in lost]
    assert [frame.bodies[0] for frame in reader] == [*numbers, b"new"]
    assert len(reader.skipped) == gaps
    assert audit(directory).registers == {"last": ("new",)}


def test_a_sound_journal_has_nothing_to_repair(directory: Path) -> None:
    found = audit(directory)

    assert found.findings == []
    assert found.sound
    assert sum(segment.messages for segment in found.segments) == 20
    assert [segment.begin for segment in found.segments] == bases(directory)
    assert found.registers == {"last": ("19",)}
    assert repair(directory) == []
    check_usable(directory, set(), 0)


def numbers_in(directory: Path, index: int) -> set[int]:
    """The numbers of one segment."""
    starts = [*bases(directory), 10**9]
    reader = FileReader(directory)
    return {int(frame.bodies[0]) for frame in reader if starts[index] <= frame.begin < starts[index + 1]}


def test_a_damaged_frame_is_set_aside(directory: Path) -> None:
    frames = list(FileReader(directory))
    segment = next(base for base in reversed(bases(directory)) if base <= frames[7].begin)
    flip(directory / f"{segment:020d}.journal", frames[7].begin - segment + 70)

    (finding,) = audit(directory).findings
    assert (finding.kind, finding.begin, finding.end) == ("damaged", frames[7].begin, frames[7].end)
    assert repair(directory) == [finding]
    check_usable(directory, {7}, 1)


def test_a_missing_segment_is_given_up(directory: Path) -> None:
    lost = numbers_in(directory, 2)
    starts = bases(directory)
    files(directory)[2].unlink()

    (finding,) = audit(directory).findings
    assert finding[:3] == ("missing", starts[2], starts[3])
    repair(directory)
    check_usable(directory, lost, 1)


def test_two_missing_segments_in_a_row_are_one_gap(directory: Path) -> None:
    lost = numbers_in(directory, 2) | numbers_in(directory, 3)
    starts = bases(directory)
    for path in files(directory)[2:4]:
        path.unlink()

    (finding,) = repair(directory)
    assert finding[:3] == ("missing", starts[2], starts[4])
    check_usable(directory, lost, 1)


def test_a_missing_last_segment_is_given_up_and_begun_anew(directory: Path) -> None:
    lost = numbers_in(directory, len(files(directory)) - 1)
    files(directory)[-1].unlink()

    (finding,) = repair(directory)
    assert finding.what == "the last segment is missing"
    check_usable(directory, lost, 0)


def test_what_follows_a_segment_that_was_given_up_is_missed_too(directory: Path) -> None:
    files(directory)[-2].unlink()
    repair(directory)
    files(directory)[-1].unlink()
    with pytest.raises(JournalUnfit, match="that segment is missing"):
        FileLog(directory)

    assert [finding.what for finding in repair(directory)] == ["the last segment is missing"]
    with FileLog(directory) as log:
        log.append([b"new"])
    assert [frame.bodies[0] for frame in FileReader(directory)][-1] == b"new"


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_damaged_segment_header_is_written_anew(directory: Path, index: int) -> None:
    before = audit(directory)
    flip(files(directory)[index], 50)

    (finding,) = repair(directory)
    assert finding.kind == "unreadable"
    assert audit(directory).id == before.id
    assert (directory / "quarantine" / files(directory)[index].name).exists()
    check_usable(directory, set(), 0)


def test_a_segment_of_rubbish_is_given_up(directory: Path) -> None:
    lost = numbers_in(directory, 1)
    path = files(directory)[1]
    path.write_bytes(os.urandom(path.stat().st_size))

    (finding,) = repair(directory)
    assert finding.kind == "unreadable"
    check_usable(directory, lost, 1)


def test_a_segment_that_was_cut_short_has_a_gap_at_its_end(directory: Path) -> None:
    path = files(directory)[1]
    last = max(numbers_in(directory, 1))
    os.truncate(path, path.stat().st_size - 70)

    (finding,) = repair(directory)
    assert finding.kind == "damaged"
    check_usable(directory, {last}, 1)


def test_a_damaged_seal_costs_nothing(directory: Path) -> None:
    path = files(directory)[1]
    flip(path, path.stat().st_size - 10)

    (finding,) = repair(directory)
    assert (finding.kind, finding.messages) == ("damaged", 0)
    assert audit(directory).lost == []
    check_usable(directory, set(), 1)


def test_an_unfinished_append_is_harmless_and_cut_off(directory: Path) -> None:
    with files(directory)[-1].open("ab") as file:
        file.write(b"cjfr")

    (finding,) = audit(directory).findings
    assert finding.kind == "unfinished"
    assert audit(directory).sound
    assert repair(directory) == [finding]
    check_usable(directory, set(), 0)


def test_a_directory_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(JournalUnfit, match="there is no journal"):
        repair(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_later_format_is_not_repaired(directory: Path) -> None:
    path = files(directory)[0]
    data = bytearray(path.read_bytes())
    data[16] = 7
    path.write_bytes(data)

    with pytest.raises(JournalUnfit, match="version 7"):
        repair(directory)
    assert path.read_bytes() == data


def test_a_released_owner_may_begin_with_any_fence_and_its_writer_is_fenced(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        assert not release_writer(log, "orders")
        old = WriterClaim(log, "orders", 57, Publisher())
        assert release_writer(log, "orders")

        new = WriterClaim(log, "orders", 1, Publisher())
        new.discard_former()
        assert log.append([b"x"], check=new.check)
        from conduit_py.errors import Fenced

        with pytest.raises(Fenced):
            log.append([b"x"], check=old.check)
