"""Bad files: missing, not writable, too large, on a disk that is full."""

import shutil
import subprocess

import pytest
from command_folder import COMMAND, KEEP, SOURCE, Answer, Folder, in_order


def test_a_missing_file_is_named_and_read_once_it_is_there(folder: Folder) -> None:
    folder.pipeline()
    missing = folder.run()
    folder.numbers(1, 2, 3)

    assert missing.has(1, "p: error in in: there is no file in.jsonl", "create it, correct the path")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


def test_a_file_that_went_missing_is_read_on_once_it_is_back(folder: Folder) -> None:
    folder.numbers(1, 2, 3)
    folder.pipeline()
    first = folder.run()
    away = (folder.path / "in.jsonl").rename(folder.path / "away.jsonl")
    missing = folder.run()
    with away.rename(folder.path / "in.jsonl").open("a") as file:
        file.write('{"n":4}\n')

    assert first.has(0)
    assert missing.has(1, "p: error in in: there is no file in.jsonl")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3, 4]


def test_a_file_that_is_a_directory_is_refused(folder: Folder) -> None:
    (folder.path / "in.jsonl").mkdir()
    folder.pipeline()

    assert folder.run().has(1, "p: error in in: cannot read in.jsonl: it is a directory", "one regular file")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("blocked/deeper/out.jsonl", "Not a directory"),
        ("folder", "Is a directory"),
        ("/proc/out.jsonl", "No such file or directory"),
        ("/dev/full", "No space left on device"),
    ],
)
def test_a_destination_that_cannot_be_written_is_named_and_gets_everything_later(
    folder: Folder, path: str, why: str
) -> None:
    folder.write("blocked", b"")
    (folder.path / "folder").mkdir()
    folder.numbers(1, 2, 3)
    folder.pipeline(destination=f'file.Destination(path="{path}", format="json")')
    failed = folder.run()
    folder.pipeline()

    assert failed.has(1, "p: error in out: cannot ", path, why, "check the path" if "dev" not in path else "")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


def test_dead_letters_that_cannot_be_kept_stop_the_pipeline_before_it_starts(folder: Folder) -> None:
    folder.write("blocked", b"")
    folder.write("in.jsonl", b'{"n":1}\nbad\n')
    folder.pipeline(dead_letters=KEEP.replace("dead.jsonl", "blocked/dead.jsonl"))
    failed = folder.run()
    folder.pipeline(dead_letters=KEEP)

    assert failed.has(1, "p: error in dead-letters: cannot open blocked/dead.jsonl")
    assert folder.arrived() == []
    assert folder.run().has(0)
    assert (folder.arrived(), folder.letters()) == ([1], [("in", b"bad")])


def test_two_destinations_on_one_file_are_refused(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nbad\n')
    folder.pipeline(dead_letters=KEEP.replace("dead.jsonl", "out.jsonl"))

    assert folder.run().has(1, "p: error in dead-letters: out.jsonl is being written by", "a path of its own")


def test_standard_streams_that_are_closed_are_not_taken_for_other_files(folder: Folder) -> None:
    folder.numbers(1, 2, 3)
    folder.pipeline(source='stdio.Source(format="json")')
    no_input = folder.run(under="exec <&-")
    folder.pipeline(destination='stdio.Destination(format="json")')
    no_output = folder.run(under="exec >&-")
    folder.pipeline()

    assert no_input.has(1, "p: error in in: cannot read standard input: Bad file descriptor", "is it closed?")
    assert no_output.has(1, "p: error in out: cannot write to standard output: Bad file descriptor")
    assert folder.run("--fresh", under="exec <&- >&- 2>&-").has(0)
    assert folder.arrived() == [1, 2, 3]


# A disk that is full.


FILES_OF_A_MEGABYTE = "ulimit -f 1024"


def wide(folder: Folder, count: int) -> None:
    """Two kilobytes a line."""
    padding = "x" * 2000
    folder.write("in.jsonl", "".join(f'{{"n":{number},"x":"{padding}"}}\n' for number in range(count)))


def test_a_file_that_can_grow_no_more_stops_the_pipeline_which_goes_on_when_it_can(folder: Folder) -> None:
    wide(folder, 2000)
    folder.pipeline()
    full = folder.run(under=FILES_OF_A_MEGABYTE)
    kept = folder.arrived()

    assert full.has(1, "p: error in out: cannot append", "to out.jsonl: File too large", "file size limit")
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 2000
    assert folder.run().has(0)
    assert in_order(folder.arrived(), repeats_max=len(kept)) == list(range(2000))


def test_dead_letters_that_fill_the_disk_stop_the_pipeline_and_are_all_kept_later(folder: Folder) -> None:
    folder.write("in.jsonl", b"".join(b"bad %d " % number + b"x" * 2000 + b"\n" for number in range(1000)))
    # Without a window: every record is refused, and all are to be kept.
    folder.pipeline(dead_letters='DeadLetters(file.Destination(path="dead.jsonl", format="json"), window_size=0)')
    full = folder.run(under=FILES_OF_A_MEGABYTE)
    resumed = folder.run()
    numbers = [int(payload.split()[1]) for _, payload in folder.letters()]

    assert full.has(1, "p: error in in: a dead letter could not be stored", "dead.jsonl", "File too large")
    assert resumed.has(0)
    assert in_order(numbers, repeats_max=1000) == list(range(1000))


def test_no_room_for_the_state_is_the_environments_fault(folder: Folder) -> None:
    folder.numbers(1, 2, 3)
    folder.pipeline()

    assert folder.run(under="ulimit -f 4").has(3, "error: .conduit/state/state.db cannot be used", "the disk has space")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


TINY_DISK = """
set -e
mkdir disk
mount -t tmpfs -o size={size} tmpfs disk 2>/dev/null || exit 77
set +e
"$@"; first=$?
mount -o remount,size=64m disk
"$@"; second=$?
cp disk/* . 2>/dev/null
exit $((first * 10 + second))
"""


def run_on_tiny_disk(folder: Folder, size: str, *arguments: str) -> Answer:
    """Run in a folder whose `disk` is full at `size`, then again when it has grown; both codes are in the code."""
    isolated = ["unshare", "--mount", "bash", "-c", TINY_DISK.format(size=size), "bash"]
    if shutil.which("unshare") is None:
        pytest.skip("a disk of a few kilobytes needs the program unshare")
    ran = subprocess.run(
        [*isolated, COMMAND, "run", "p.py", *arguments], cwd=folder.path, capture_output=True, text=True, timeout=300
    )
    if ran.returncode in (1, 77) and not ran.stdout:
        pytest.skip("a disk of a few kilobytes needs the right to mount one")
    return Answer(ran.returncode, ran.stdout, ran.stderr)


def test_a_full_disk_stops_the_pipeline_which_goes_on_when_there_is_room(folder: Folder) -> None:
    wide(folder, 2000)
    folder.pipeline(destination='file.Destination(path="disk/out.jsonl", format="json")')
    answer = run_on_tiny_disk(folder, "1m")

    assert answer.has(10, "p: error in out: cannot append", "No space left on device", "disk/out.jsonl")
    assert in_order(folder.arrived(), repeats_max=2000) == list(range(2000))


def test_a_full_disk_for_the_state_acks_nothing_that_is_not_remembered(folder: Folder) -> None:
    folder.numbers(*range(400))
    folder.pipeline(source=SOURCE + ", batch_size=8, window=8")
    answer = run_on_tiny_disk(folder, "64k", "--state", "disk/state")

    assert answer.has(10, "p: error in in: disk/state/state.db could not be written", "disk is full", "free space")
    assert in_order(folder.arrived(), repeats_max=8) == list(range(400))


def test_a_full_disk_for_dead_letters_acks_none_that_is_not_kept_and_says_what_to_do(folder: Folder) -> None:
    wide(folder, 1500)
    head = "def refuse(record):\n    raise ValueError('not wanted')\n"
    folder.pipeline(processors="[refuse]", dead_letters="DeadLetters.keep(window_size=0)", head=head)
    answer = run_on_tiny_disk(folder, "1m", "--state", "disk/state")

    assert answer.has(10, "a dead letter could not be stored", "letters.db", "disk is full", "free space on that disk")


# Definitions that are wrong: nothing starts, and one answer has all of it.
