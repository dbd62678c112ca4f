"""A last segment that was cut short is a loss, refused by writers and readers; a torn append stays harmless."""

import os
import shutil
from pathlib import Path

import pytest
from conduit_connectors import journal, memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import conduit_py
from conduit_py import Pipeline, Recovery
from conduit_py.journal.audit import audit, repair
from conduit_py.journal.errors import JournalDamaged, JournalUnfit
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import FileReader, JournalFiles


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "j", 5)
    return tmp_path / "j"


def write(directory: Path, count: int) -> list[int]:
    """Numbers, each confirmed before the next. Returns where each ends."""
    with FileLog(directory, segment_size=2**20) as log:
        return [log.append([b"%d" % number]).end for number in range(count)]


def last_file(directory: Path) -> Path:
    return sorted(directory.glob("*.journal"))[-1]


def cut(directory: Path, size: int) -> bytes:
    """Cut bytes off the end of the last segment. Returns what is left of it."""
    path = last_file(directory)
    os.truncate(path, path.stat().st_size - size)
    return path.read_bytes()


def numbers(directory: Path) -> list[bytes]:
    return [frame.bodies[0] for frame in FileReader(directory)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 270), junk=st.sampled_from([b"", b"\0" * 500, b"cjfr" + bytes(60)]))
def test_a_writer_refuses_a_journal_that_was_cut_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, size: int, junk: bytes
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    ends = write(directory, 5)
    left = cut(directory, size) + junk
    last_file(directory).write_bytes(left)
    end = max(each for each in ends if each <= ends[-1] - size)

    with pytest.raises(JournalUnfit) as refused:
        FileLog(directory)

    name = last_file(directory).name
    assert refused.value.message == (
        f"journal {directory} ends at offset {end}, but appends were confirmed up to offset {ends[-1]}: "
        f"{name} was cut short or damaged at its end, and its last messages are lost"
    )
    assert refused.value.suggestion is not None
    assert (
        f"put {name} back from a copy; or accept the loss with `conduit-py journal repair" in refused.value.suggestion
    )
    assert last_file(directory).read_bytes() == left
    assert not (directory / "quarantine").exists()


def test_a_last_frame_that_was_confirmed_and_is_damaged_is_refused_too(directory: Path) -> None:
    data = bytearray(last_file(directory).read_bytes())
    data[-1] ^= 1
    last_file(directory).write_bytes(data)

    with pytest.raises(JournalUnfit, match="was cut short or damaged at its end"):
        FileLog(directory)


def test_readers_refuse_a_last_frame_that_was_confirmed_and_is_damaged(directory: Path) -> None:
    path = last_file(directory)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    reader, source = FileReader(directory), journal.Source(path=directory, until="end")

    # An append under way would be waited for; this one was confirmed, so its bytes will never become whole.
    with pytest.raises(JournalDamaged, match="a frame whose checksum does not fit"):
        list(reader)
    source.open(None)
    # Not the end of the source: it would complete without the last message.
    with pytest.raises(JournalDamaged, match="a frame whose checksum does not fit"):
        list(iter(lambda: source.read(100), None))


def test_an_append_that_never_ended_is_cut_off_as_before(directory: Path) -> None:
    with last_file(directory).open("ab") as file:
        file.write(b"cjfr" + bytes(30))

    [finding] = audit(directory).findings
    with FileLog(directory) as log:
        log.append([b"new"])

    assert (finding.kind, finding.messages) == ("unfinished", 0)
    assert numbers(directory) == [b"0", b"1", b"2", b"3", b"4", b"new"]


def test_what_was_never_synced_may_be_missing(tmp_path: Path) -> None:
    with FileLog(tmp_path, sync="batch") as log:
        log.append([b"confirmed"])
        log.barrier()
        log.append([b"not confirmed"])
        size = last_file(tmp_path).stat().st_size
    os.truncate(last_file(tmp_path), size - 1)

    with FileLog(tmp_path) as log:
        log.append([b"new"])

    assert numbers(tmp_path) == [b"confirmed", b"new"]


def test_a_writer_that_finds_it_while_it_appends_refuses_too(directory: Path) -> None:
    with FileLog(directory) as log, FileLog(directory) as other:
        other.append([b"of another writer"])
        cut(directory, 1)

        with pytest.raises(JournalUnfit, match="was cut short or damaged at its end"):
            log.append([b"new"])


def test_readers_refuse_it_when_they_open(directory: Path) -> None:
    source = journal.Source(path=directory)
    source.open(None)
    source.teardown()
    cut(directory, 1)

    with pytest.raises(JournalUnfit, match="appends were confirmed up to offset"):
        journal.Source(path=directory).open(None)
    with pytest.raises(JournalUnfit, match="was cut short"):
        JournalFiles(directory).check_end()


def test_a_repair_makes_it_a_gap_and_no_offset_is_used_twice(directory: Path) -> None:
    with FileLog(directory) as log:
        end = log.barrier().end
    cut(directory, 100)

    before = audit(directory)
    [finding] = repair(directory)
    with FileLog(directory) as log:
        new = log.append([b"new"])

    assert not before.sound
    assert before.lost == [finding]
    assert (finding.kind, finding.end) == ("lost", end)
    assert new.begin == end
    assert numbers(directory) == [b"0", b"1", b"2", b"new"]
    after = audit(directory)
    assert after.sound
    assert [(each.kind, each.begin, each.end) for each in after.lost] == [("gap", finding.begin, end)]


def test_the_number_of_lost_messages_is_reported_if_a_header_has_it(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([b"a", b"b", b"c"])
    cut(tmp_path, 1)

    [finding] = audit(tmp_path).findings
    repair(tmp_path)

    assert (finding.kind, finding.messages) == ("lost", 3)
    assert [each.kind for each in audit(tmp_path).lost] == ["gap"]


def test_a_last_segment_that_is_missing_is_given_up_with_its_offsets(tmp_path: Path) -> None:
    with FileLog(tmp_path, segment_size=300) as log:
        for number in range(20):
            end = log.append([b"%d" % number]).end
    last_file(tmp_path).unlink()

    [finding] = repair(tmp_path)
    with FileLog(tmp_path) as log:
        new = log.append([b"new"])

    assert (finding.kind, finding.end) == ("missing", end)
    assert new.begin > end
    assert numbers(tmp_path)[-1] == b"new"
    assert audit(tmp_path).sound


def test_another_journal_in_the_same_directory_is_not_held_to_the_mark(directory: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", 1)
    shutil.copy(last_file(tmp_path / "other"), last_file(directory))

    with FileLog(directory) as log:
        log.append([b"new"])

    assert numbers(directory) == [b"0", b"new"]


def test_writers_readers_and_verify_refuse_a_journal_whose_segments_were_all_removed(directory: Path) -> None:
    with FileLog(directory) as log:
        end = log.barrier().end
    last_file(directory).unlink()
    lost = f"journal {directory} has no segments, but appends were confirmed up to offset {end}"

    with pytest.raises(JournalUnfit, match=lost) as refused:
        FileLog(directory)
    with pytest.raises(JournalUnfit, match=lost):
        journal.Source(path=directory).open(None)
    with pytest.raises(JournalUnfit, match=lost):
        journal.Source(path=directory, until="end").open(None)

    [finding] = audit(directory).findings
    assert (finding.kind, finding.begin, finding.end) == ("missing", 0, end)
    assert not audit(directory).sound
    assert refused.value.suggestion is not None
    assert f"remove {directory} as a whole" in refused.value.suggestion
    assert sorted(each.name for each in directory.iterdir()) == ["lock", "synced"]


def test_a_repair_without_any_segment_uses_no_offset_again(directory: Path) -> None:
    with FileLog(directory) as log:
        id, end = log.id, log.barrier().end
    last_file(directory).unlink()
    repair(directory)
    with FileLog(directory) as log:
        new = log.append([b"new"])

        assert log.id == id
    assert new.begin > end
    assert numbers(directory) == [b"new"]
    assert audit(directory).sound
    assert audit(directory).lost


def test_a_directory_that_was_removed_as_a_whole_is_a_new_journal(directory: Path) -> None:
    shutil.rmtree(directory)
    write(directory, 1)

    assert numbers(directory) == [b"0"]


@pytest.mark.parametrize("end", ["source", "destination"])
def test_a_pipeline_does_not_start_again_for_it(directory: Path, end: str) -> None:
    cut(directory, 1)
    pipeline = Pipeline(
        "p",
        sources={"in": journal.Source(path=directory) if end == "source" else memory.Source(records=[1])},
        destinations={"out": memory.Destination(into=[]) if end == "source" else journal.Destination(path=directory)},
        recovery=Recovery(retries=1, delay_seconds=0.01),
    )
    outcome = conduit_py.run(pipeline)

    assert isinstance(outcome.error, JournalUnfit)
    assert (outcome.status, outcome.counts.recoveries, outcome.error.code) == ("degraded", 0, "journal.unfit")


@pytest.mark.parametrize("mark", [b"", b"rubbish", bytes(28), None])
def test_a_mark_that_cannot_be_read_says_nothing(directory: Path, mark: bytes | None) -> None:
    (directory / "synced").unlink()
    if mark is not None:
        (directory / "synced").write_bytes(mark)
    cut(directory, 1)

    [finding] = audit(directory).findings
    with FileLog(directory) as log:
        log.append([b"new"])

    assert (finding.kind, finding.messages) == ("unfinished", None)
    assert numbers(directory) == [b"0", b"1", b"2", b"3", b"new"]
