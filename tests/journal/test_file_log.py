"""A journal on the disk: torn tails, flipped bits, missing segments, full and failing disks. No loop, no silence."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_py.journal.disk import AppendLock
from conduit_py.journal.errors import JournalBusy, JournalDamaged, JournalFailed, JournalFull, JournalGap, JournalUnfit
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.file_reader import FileReader
from conduit_py.journal.log import SyncPolicy
from conduit_py.journal.segment import bases
from tests.journal.faulty_disk import EIO, ENOSPC, FaultyDisk


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def bodies(directory: Path, offset: int = 0) -> list[bytes]:
    reader = FileReader(directory, offset)
    try:
        return [body for frame in reader for body in frame.bodies]
    finally:
        reader.close()


def write(directory: Path, count: int, **options: int) -> list[int]:
    """The offsets at which frames of one body each begin; the body is the number."""
    with FileLog(directory, sync="never", segment_size=options.get("segment_size", 2**20)) as log:
        return [log.append([b"%d" % number]).begin for number in range(count)]


def read_past_errors(directory: Path) -> tuple[list[bytes], list[JournalDamaged | JournalGap]]:
    """Everything that can be read, and every error met on the way. More errors than frames would be a loop."""
    reader, found, errors = FileReader(directory, durable=False), list[bytes](), list[JournalDamaged | JournalGap]()
    while len(errors) < 100:
        try:
            frame = reader.read()
        except (JournalDamaged, JournalGap) as error:
            errors.append(error)
            continue
        if frame is None:
            break
        found += frame.bodies
    reader.close()
    return found, errors


def test_a_journal_goes_on_when_it_is_opened_again(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([b"one"], union={"author": "me"})
        first = log.id
    with FileLog(tmp_path) as log:
        log.append([b"two"])

        assert log.id == first
        assert log.barrier().registers == {"author": ("me",)}
    assert bodies(tmp_path) == [b"one", b"two"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 400), junk=st.sampled_from([b"", b"\0" * 100, b"cjfr" + bytes(60), os.urandom(300)]))
def test_a_torn_tail_costs_only_what_was_not_finished(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    write(directory, 5)
    (path,) = files(directory)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - cut, 300)] + junk)
    left = bodies(directory)

    with FileLog(directory) as log:
        log.append([b"new"])

    assert left == [b"%d" % number for number in range(len(left))]
    assert bodies(directory) == [*left, b"new"]


def test_a_torn_tail_is_reported_with_its_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = write(tmp_path, 3)
    os.truncate(files(tmp_path)[0], files(tmp_path)[0].stat().st_size - 1)

    with caplog.at_level(logging.WARNING), FileLog(tmp_path):
        pass

    assert f"cut off an unfinished frame at its end, offsets {offsets[2]} to" in caplog.text
    assert bodies(tmp_path) == [b"0", b"1"]
    assert not (tmp_path / "quarantine").exists()


def test_a_reader_takes_an_unfinished_frame_for_one_that_is_on_its_way(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    reader = FileReader(tmp_path)

    assert [frame.bodies for frame in reader] == [[b"0"], [b"1"]]
    path.write_bytes(whole)
    assert [frame.bodies for frame in reader] == [[b"2"]]


def test_a_last_frame_that_is_whole_but_damaged_is_kept_aside(tmp_path: Path) -> None:
    write(tmp_path, 3)
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    with FileLog(tmp_path):
        pass

    (kept,) = (tmp_path / "quarantine").iterdir()
    assert kept.read_bytes()[:-1] == whole[-kept.stat().st_size : -1]
    assert bodies(tmp_path) == [b"0", b"1"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), bit=st.integers(0, 7), small=st.booleans())
def test_a_flipped_bit_is_reported_by_offset_and_costs_one_frame(
    tmp_path_factory: pytest.TempPathFactory, at: float, bit: int, small: bool
) -> None:
    directory = tmp_path_factory.mktemp("flipped")
    offsets = write(directory, 30, segment_size=400 if small else 2**20)
    path = files(directory)[0]
    place = offsets[0] + int(at * (path.stat().st_size - 1 - offsets[0]))
    flip(path, place, 1 << bit)

    found, errors = read_past_errors(directory)

    if place >= offsets[-1]:
        # The last frame of all could be one that is being written; opening the journal tells.
        assert (found, errors) == ([b"%d" % number for number in range(29)], [])
        return
    (error,) = errors
    assert error.begin <= place < error.end
    hit = [number for number, offset in enumerate(offsets) if error.begin <= offset < error.end]
    assert len(hit) <= 1
    assert found == [b"%d" % number for number in range(30) if number not in hit]


def test_a_segment_whose_own_header_is_damaged_is_reported_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, 20, segment_size=400)
    starts = bases(tmp_path)
    flip(files(tmp_path)[1], 40, 1)

    found, (error,) = read_past_errors(tmp_path)

    assert (error.begin, error.end) == (starts[1], starts[2])
    assert found[-1] == b"19"
    flip(files(tmp_path)[-1], 40, 1)
    with pytest.raises(JournalUnfit, match="its header is damaged"):
        FileLog(tmp_path)


def flip(path: Path, place: int, bits: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


def test_damage_between_frames_is_set_aside_when_the_journal_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = write(tmp_path, 5)
    path = files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[offsets[2] + 68] ^= 4
    path.write_bytes(data)
    assert [str(error) for error in read_past_errors(tmp_path)[1]] == [
        f"journal {tmp_path}: a frame whose checksum does not fit at offsets {offsets[2]} to {offsets[3]}"
    ]

    with caplog.at_level(logging.ERROR), FileLog(tmp_path) as log:
        log.append([b"new"])

    assert f"offsets {offsets[2]} to {offsets[3]} was set aside" in caplog.text
    kept = tmp_path / "quarantine" / f"{offsets[2]:020d}-{offsets[3]:020d}.bin"
    assert kept.read_bytes() == bytes(data[offsets[2] : offsets[3]])
    assert read_past_errors(tmp_path) == ([b"0", b"1", b"3", b"4", b"new"], [])
    reader = FileReader(tmp_path)
    assert len(list(reader)) == 5
    assert reader.skipped == [(offsets[2], offsets[3])]


def test_a_missing_segment_is_reported_once_and_reading_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 20, segment_size=400)
    starts = bases(tmp_path)
    files(tmp_path)[1].unlink()

    found, errors = read_past_errors(tmp_path)

    assert [(error.begin, error.end) for error in errors] == [(starts[1], starts[2])]
    assert "a segment is lost" in str(errors[0])
    assert found[0] == b"0"
    assert found[-1] == b"19"
    # What is appended goes behind what is there; only the reader of the missing range is concerned.
    with FileLog(tmp_path) as log:
        log.append([b"new"])


def test_a_missing_last_segment_is_never_taken_for_the_end(tmp_path: Path) -> None:
    write(tmp_path, 20, segment_size=400)
    files(tmp_path)[-1].unlink()
    reader = FileReader(tmp_path)

    with pytest.raises(JournalUnfit, match="is missing"):
        list(reader)
    with pytest.raises(JournalUnfit, match="is missing"):
        FileLog(tmp_path)


def test_an_offset_beyond_the_end_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, 1)

    with pytest.raises(JournalGap, match="the journal ends before them"):
        FileReader(tmp_path, 10_000_000).read()


def test_a_full_disk_refuses_an_append_and_takes_the_next(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with FileLog(tmp_path, disk=disk) as log:
        log.append([b"before"])
        disk.fail_write = ENOSPC
        with pytest.raises(JournalFull, match="no room for an append"):
            log.append([b"x" * 1000])

        assert bodies(tmp_path) == [b"before"]
        log.append([b"after"])
    assert bodies(tmp_path) == [b"before", b"after"]


def test_a_disk_that_is_full_when_a_segment_ends_is_no_different(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with FileLog(tmp_path, disk=disk, segment_size=300) as log:
        log.append([b"x" * 300])
        disk.fail_write = ENOSPC
        with pytest.raises(JournalFull, match="no room for a new segment"):
            log.append([b"refused"])
        log.append([b"after"])
    assert bodies(tmp_path)[1:] == [b"after"]
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("error", ["fail_sync", "fail_write"])
def test_after_an_io_error_nothing_is_appended_until_the_journal_is_opened_again(tmp_path: Path, error: str) -> None:
    disk = FaultyDisk()
    log = FileLog(tmp_path, disk=disk)
    log.append([b"before"])
    setattr(disk, error, EIO)
    with pytest.raises(JournalFailed, match="Input/output error"):
        log.append([b"lost"])
    with pytest.raises(JournalFailed, match="takes no more appends"):
        log.append([b"refused"])
    log.close()

    assert bodies(tmp_path) == [b"before"]
    with FileLog(tmp_path) as again:
        again.append([b"after"])
    assert bodies(tmp_path) == [b"before", b"after"]


def test_what_a_failed_sync_left_behind_is_verified_when_it_cannot_be_taken_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = FileLog(tmp_path, disk=disk)
    log.append([b"before"])
    disk.fail_sync = disk.fail_truncate = EIO
    with pytest.raises(JournalFailed):
        log.append([b"nobody knows"])
    log.close()

    with FileLog(tmp_path) as again:
        again.append([b"after"])
    # It was not acknowledged, so it may be there; what matters is that the rest is.
    assert [each for each in bodies(tmp_path) if each != b"nobody knows"] == [b"before", b"after"]


@pytest.mark.parametrize(("policy", "syncs"), [("always", 10), ("batch", 1), ("never", 0)])
def test_the_policy_says_when_appends_reach_the_disk(tmp_path: Path, policy: SyncPolicy, syncs: int) -> None:
    disk = FaultyDisk()
    with FileLog(tmp_path, disk=disk, sync=policy) as log:
        before = disk.syncs
        for _ in range(10):
            log.append([b"x"])
        log.barrier()
        log.barrier()

        assert disk.syncs - before == syncs


def test_appends_of_a_group_share_one_sync(tmp_path: Path) -> None:
    from conduit_py.journal.log import Append

    disk = FaultyDisk()
    with FileLog(tmp_path, disk=disk) as log:
        before = disk.syncs
        log.append_all([Append([b"%d" % number]) for number in range(100)])

        assert disk.syncs - before == 1
    assert len(bodies(tmp_path)) == 100


def test_two_logs_of_one_journal_see_each_others_appends_and_registers(tmp_path: Path) -> None:
    with FileLog(tmp_path, segment_size=300) as one, FileLog(tmp_path, segment_size=300) as other:
        for number in range(20):
            (one if number % 2 else other).append([b"%d" % number], union={"author": str(number)})

        assert one.barrier() == other.barrier()
        assert one.barrier().registers == {"author": ("19",)}
    assert bodies(tmp_path) == [b"%d" % number for number in range(20)]


def test_what_another_process_left_unfinished_is_cut_off_by_the_next_append(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([b"one"])
        with files(tmp_path)[0].open("ab") as file:
            file.write(b"cjfr and then it died")
        log.append([b"two"])
    assert bodies(tmp_path) == [b"one", b"two"]


def test_damage_among_what_another_process_appended_costs_only_the_damaged(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([b"one"])
        with FileLog(tmp_path) as other:
            hit = other.append([b"two"]).end - 1
            other.append([b"three"])
        flip(files(tmp_path)[0], hit, 1)
        log.append([b"four"])
    reader = FileReader(tmp_path)

    assert [frame.bodies[0] for frame in reader] == [b"one", b"three", b"four"]
    assert len(reader.skipped) == 1


def test_a_holder_of_the_lock_that_does_not_let_go_is_named(tmp_path: Path) -> None:
    named = f"held by (process {os.getpid()}|another process) for 0.05 seconds"
    with FileLog(tmp_path, wait_seconds=0.05) as log:
        with AppendLock(tmp_path).hold(), pytest.raises(JournalBusy, match=named):
            log.append([b"one"])
        log.append([b"two"])
    assert bodies(tmp_path) == [b"two"]


def test_a_file_of_a_later_format_is_not_touched(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[16] = 99
    path.write_bytes(data)

    with pytest.raises(JournalUnfit, match="version 99 of the format"):
        FileLog(tmp_path)
    assert path.read_bytes() == data


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalUnfit, match="file/journal cannot be created"):
        FileLog(tmp_path / "file" / "journal")
