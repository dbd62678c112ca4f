"""Bad input through the real command: a clear error or a dead letter, never a traceback, and nothing lost.

Every answer must say what is wrong, where, and what to do. Whatever stops a pipeline, once it is removed the
next run delivers what is missing.
"""

import base64
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).parent / "conduit-py"
MEGABYTE = 1024 * 1024

HEAD = """\
import json
from pathlib import Path
from conduit_connectors import file, stdio
from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source, processor, sdk
"""
SOURCE = 'file.Source(path="in.jsonl", format="json")'
DESTINATION = 'file.Destination(path="out.jsonl", format="json")'
KEEP = 'DeadLetters(file.Destination(path="dead.jsonl", format="json"))'


class Answer:
    """What the command said and how it ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        assert "Traceback" not in stdout + stderr, stderr
        assert "internal error" not in stderr, stderr

    def has(self, code: int, *words: str) -> bool:
        """Whether it ended with this code and said all of this on stderr."""
        missing = [word for word in words if word not in self.stderr]
        assert (self.code, missing) == (code, []), f"{self.code}: {self.stdout}{self.stderr}"
        return True


class Folder:
    """A folder with one pipeline, `p`, and what flows through it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: bytes | str) -> Path:
        file = self.path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def numbers(self, *numbers: int) -> None:
        self.write("in.jsonl", "".join(f'{{"n":{number}}}\n' for number in numbers))

    def define(self, text: str, head: str = "") -> None:
        self.write("p.py", HEAD + head + text)

    def pipeline(
        self,
        *,
        source: str = SOURCE,
        destination: str = DESTINATION,
        processors: str = "[]",
        dead_letters: str = "None",
        head: str = "",
    ) -> None:
        self.define(
            f'pipeline = Pipeline("p", sources=[Source("in", {source})], processors={processors}, '
            f'destinations=[Destination("out", {destination})], dead_letters={dead_letters})\n',
            head,
        )

    def run(self, *arguments: str, under: str = "") -> Answer:
        """Run the pipeline, `under` what bash should set or close before."""
        command = [str(COMMAND), "run", "p.py", *arguments]
        if under:
            command = ["bash", "-c", f'{under}; exec "$@"', "bash", *command]
        ran = subprocess.run(command, cwd=self.path, capture_output=True, text=True, timeout=300, check=False)
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    def lines(self, name: str = "out.jsonl") -> list[Any]:
        """The JSON lines of a file, each of which must be whole."""
        file = self.path / name
        text = file.read_bytes() if file.exists() else b""
        assert text.endswith(b"\n") or not text
        return [json.loads(line) for line in text.splitlines()]

    def arrived(self, name: str = "out.jsonl") -> list[int]:
        return [line["n"] for line in self.lines(name)]

    def letters(self) -> list[tuple[str, Any]]:
        """The node and the payload of every dead letter, raw payloads as bytes."""
        return [(letter["node"], payload_of(letter)) for letter in self.lines("dead.jsonl")]

    @property
    def untouched(self) -> bool:
        """Whether nothing was started: neither state nor output."""
        return not (self.path / ".conduit").exists() and not (self.path / "out.jsonl").exists()


def payload_of(letter: dict[str, Any]) -> Any:
    payload = letter["record"]["payload"]["after"]
    return base64.b64decode(payload) if isinstance(payload, str) else payload


def in_order(numbers: Iterable[int], repeats_max: int) -> list[int]:
    """The numbers in the order of their first arrival; more repeats than allowed are a failure."""
    numbers = list(numbers)
    first = list(dict.fromkeys(numbers))
    assert len(numbers) - len(first) <= repeats_max
    return first


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# Lines that cannot be read.

BAD_LINES = [b"not JSON", b'{"n": 2', b"[1, 2]", b'"text"', b'{"n": 1}{"n": 2}', b"\x00\x01", b'{"n": NaN}']


def test_unparsable_lines_are_dead_letters_with_the_line_kept(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\n' + b"\n".join(BAD_LINES) + b'\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP)
    answer = folder.run()

    assert answer.has(0)
    assert f"{len(BAD_LINES)} dead letters" in answer.stdout
    assert folder.arrived() == [1, 2]
    assert folder.letters() == [("in", line) for line in BAD_LINES]
    assert all(letter["error"] for letter in folder.lines("dead.jsonl"))


def test_the_first_unparsable_line_stops_a_pipeline_that_keeps_no_dead_letters(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nnot JSON\n{"n":2}\n')
    folder.pipeline()
    stopped, again = folder.run(), folder.run()
    folder.pipeline(dead_letters=KEEP)
    resumed = folder.run()

    for answer in (stopped, again):
        assert answer.has(1, "p: failed in in: in refused a record: not valid JSON", "[dead_letter.not_allowed]")
        assert answer.has(1, "correct the record of in at 'file:", ":17'", "dead_letters=DeadLetters(…) keeps them")
    assert resumed.has(0)
    assert in_order(folder.arrived(), repeats_max=2) == [1, 2]
    assert folder.letters() == [("in", b"not JSON")]


def test_more_bad_lines_than_the_window_allows_stop_the_pipeline(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nbad\nworse\nworst\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP[:-1] + ", window_size=10, window_nack_threshold=2)")
    stopped = folder.run()
    folder.pipeline(dead_letters=KEEP)
    resumed = folder.run()

    assert stopped.has(1, "p: failed in in: too many records were refused", "not valid JSON", "window_nack_threshold")
    assert resumed.has(0)
    assert in_order(folder.arrived(), repeats_max=1) == [1, 2]
    assert folder.letters() == [("in", b"bad"), ("in", b"worse"), ("in", b"worst")]


def test_invalid_utf8_is_a_dead_letter_where_text_is_wanted(folder: Folder) -> None:
    bad = [b'{"n": "\xff\xfe"}', b"\x80\x81", '{"n": 1}'.encode("utf-16-le")]
    folder.write("in.jsonl", b'{"n":1}\n' + b"\n".join(bad) + b'\n{"n":2}\n')
    folder.pipeline(dead_letters=KEEP)

    assert folder.run().has(0)
    assert folder.arrived() == [1, 2]
    assert folder.letters() == [("in", line) for line in bad]


def test_invalid_utf8_is_carried_exactly_where_bytes_are_wanted(folder: Folder) -> None:
    content = b"\xff\xfe\xc3\n\n\x00\x80\n"
    folder.write("in.jsonl", content)
    folder.pipeline(
        source='file.Source(path="in.jsonl", format="lines")',
        destination='file.Destination(path="out.txt", format="lines")',
    )

    assert folder.run().has(0)
    assert (folder.path / "out.txt").read_bytes() == content


@pytest.mark.slow
def test_a_line_of_50_megabytes_is_a_dead_letter_in_bounded_memory(folder: Folder) -> None:
    folder.pipeline(dead_letters=KEEP)
    peaks = [peak_memory(folder, size) for size in (50 * MEGABYTE, 200 * MEGABYTE)]

    assert abs(peaks[0] - peaks[1]) < 16 * MEGABYTE
    assert folder.arrived() == [1, 2, 1, 2]
    for letter, size in zip(folder.lines("dead.jsonl"), (50 * MEGABYTE, 200 * MEGABYTE), strict=True):
        assert letter["error"].startswith(f"the line has {size} bytes, more than line_size_max")
        # The rest is not lost: the position says where in the file the line ends.
        assert base64.b64decode(letter["position"]).endswith(b":%d" % (len(b'{"n":1}\n') + size + 1))
        assert payload_of(letter) == bytes(1024)


def peak_memory(folder: Folder, size: int) -> int:
    """Run with one line of this size in the input; the most memory that the process had."""
    file = folder.write("in.jsonl", b'{"n":1}\n')
    with file.open("r+b") as grown:
        grown.seek(size, os.SEEK_END)
        grown.write(b'\n{"n":2}\n')
    with (folder.path / "said").open("wb") as said:
        process = subprocess.Popen([COMMAND, "run", "p.py", "--fresh"], cwd=folder.path, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (folder.path / "said").read_text()
    return usage.ru_maxrss * 1024


@pytest.mark.slow
def test_a_line_of_50_megabytes_arrives_when_it_is_allowed(folder: Folder) -> None:
    text = "x" * 50 * MEGABYTE
    folder.write("in.jsonl", json.dumps({"n": text}, separators=(",", ":")) + "\n")
    folder.pipeline(source=f'file.Source(path="in.jsonl", format="json", line_size_max={64 * MEGABYTE})')

    assert folder.run().has(0)
    assert folder.lines() == [{"n": text}]


# Files that are not there, or not files.


def test_a_missing_file_is_named_and_read_once_it_is_there(folder: Folder) -> None:
    folder.pipeline()
    missing = folder.run()
    folder.numbers(1, 2, 3)

    assert missing.has(1, "p: failed in in: there is no file in.jsonl", "create it, correct the path")
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
    assert missing.has(1, "p: failed in in: there is no file in.jsonl")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3, 4]


def test_a_file_that_is_a_directory_is_refused(folder: Folder) -> None:
    (folder.path / "in.jsonl").mkdir()
    folder.pipeline()

    assert folder.run().has(1, "p: failed in in: cannot read in.jsonl: it is a directory", "one regular file")


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

    assert failed.has(1, "p: failed in out: cannot ", path, why, "check the path" if "dev" not in path else "")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


def test_dead_letters_that_cannot_be_kept_stop_the_pipeline_before_it_starts(folder: Folder) -> None:
    folder.write("blocked", b"")
    folder.write("in.jsonl", b'{"n":1}\nbad\n')
    folder.pipeline(dead_letters=KEEP.replace("dead.jsonl", "blocked/dead.jsonl"))
    failed = folder.run()
    folder.pipeline(dead_letters=KEEP)

    assert failed.has(1, "p: failed in dead-letters: cannot open blocked/dead.jsonl")
    assert folder.arrived() == []
    assert folder.run().has(0)
    assert (folder.arrived(), folder.letters()) == ([1], [("in", b"bad")])


def test_two_destinations_on_one_file_are_refused(folder: Folder) -> None:
    folder.write("in.jsonl", b'{"n":1}\nbad\n')
    folder.pipeline(dead_letters=KEEP.replace("dead.jsonl", "out.jsonl"))

    assert folder.run().has(1, "p: failed in dead-letters: out.jsonl is being written by", "a path of its own")


def test_standard_streams_that_are_closed_are_not_taken_for_other_files(folder: Folder) -> None:
    folder.numbers(1, 2, 3)
    folder.pipeline(source='stdio.Source(format="json")')
    no_input = folder.run(under="exec <&-")
    folder.pipeline(destination='stdio.Destination(format="json")')
    no_output = folder.run(under="exec >&-")
    folder.pipeline()

    assert no_input.has(1, "p: failed in in: cannot read standard input: Bad file descriptor", "is it closed?")
    assert no_output.has(1, "p: failed in out: cannot write to standard output: Bad file descriptor")
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

    assert full.has(1, "p: failed in out: cannot append", "to out.jsonl: File too large", "file size limit")
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 2000
    assert folder.run().has(0)
    assert in_order(folder.arrived(), repeats_max=len(kept)) == list(range(2000))


def test_dead_letters_that_fill_the_disk_stop_the_pipeline_and_are_all_kept_later(folder: Folder) -> None:
    folder.write("in.jsonl", b"".join(b"bad %d " % number + b"x" * 2000 + b"\n" for number in range(1000)))
    folder.pipeline(dead_letters=KEEP)
    full = folder.run(under=FILES_OF_A_MEGABYTE)
    resumed = folder.run()
    numbers = [int(payload.split()[1]) for _, payload in folder.letters()]

    assert full.has(1, "p: failed in in: a dead letter could not be stored", "dead.jsonl", "File too large")
    assert resumed.has(0)
    assert in_order(numbers, repeats_max=1000) == list(range(1000))


def test_no_room_for_the_state_is_the_environments_fault(folder: Folder) -> None:
    folder.numbers(1, 2, 3)
    folder.pipeline()

    assert folder.run(under="ulimit -f 4").has(3, "error: .conduit/p/state.db cannot be used", "the disk has space")
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

    assert answer.has(10, "p: failed in out: cannot append", "No space left on device", "disk/out.jsonl")
    assert in_order(folder.arrived(), repeats_max=2000) == list(range(2000))


def test_a_full_disk_for_the_state_acks_nothing_that_is_not_remembered(folder: Folder) -> None:
    folder.numbers(*range(400))
    folder.pipeline(source=SOURCE + ", batch_size=8, window=8")
    answer = run_on_tiny_disk(folder, "64k", "--state", "disk/state")

    assert answer.has(10, "p: failed in in: disk/state/state.db could not be written", "disk is full", "free space")
    assert in_order(folder.arrived(), repeats_max=8) == list(range(400))


# Definitions that are wrong: nothing starts, and one answer has all of it.

A = f'Source("a", {SOURCE})'
B = f'Source("b", {SOURCE})'
OUT = f'Destination("out", {DESTINATION}'
GIVEN = """
step = lambda record: record

class Bare(sdk.SourceConnector[sdk.Options]):
    def __init__(self, path): self.path = path
    def read(self, n): raise sdk.EndOfSource
"""
MISTAKES = {
    "option_types": (
        f'sources=[Source("a", file.Source(path="x", format="jsn", tail="maybe", line_size_max="big"))], '
        f"destinations=[{OUT})]",
        "sources.a.format: Input should be 'lines', 'json', 'csv' or 'opencdc', not 'jsn' (did you mean 'json'?)",
        "sources.a.tail: Input should be a valid boolean, unable to interpret input, not 'maybe'",
        "sources.a.line_size_max: Input should be a valid integer, unable to parse string as an integer, not 'big'",
    ),
    "unknown_option": (
        f'sources=[Source("a", file.Source(pth="x"))], destinations=[{OUT})]',
        "sources.a.path: this option is required (add path=…: the file to read)",
        "sources.a.pth: there is no such option (did you mean 'path'?)",
    ),
    "unknown_option_by_name": (
        f'sources=[{A}], destinations=[Destination("out", "file", settings={{"path": "x", "fromat": "json"}})]',
        "destinations.out.fromat: there is no such option (did you mean 'format'?)",
    ),
    "unknown_connector": (
        f'sources=[Source("a", "fiel")], destinations=[{OUT})]',
        "sources.a.connector: there is no source plugin 'fiel' (did you mean 'file'?)",
    ),
    "a_destination_as_a_source": (
        f'sources=[Source("a", {DESTINATION})], destinations=[{OUT})]',
        "sources.a.connector: must be a source connector, not a destination connector"
        " (connectors derive from conduit_py.sdk.SourceConnector)",
    ),
    "a_class_as_a_connector": (
        f'sources=[Source("a", file.Source)], destinations=[{OUT})]',
        "sources.a.connector: must be a source connector, not the class Source"
        " (connectors derive from conduit_py.sdk.SourceConnector)",
    ),
    "a_connector_without_its_options": (
        f'sources=[Source("a", Bare("x"))], destinations=[{OUT})]',
        "sources.a.connector: Bare.__init__ does not pass its options on"
        " (call super().__init__(**options), or declare options and leave __init__ out)",
    ),
    "out_of_range": (
        f'sources=[Source("a", {SOURCE}, batch_size=0)], destinations=[{OUT})]',
        "sources.a.batch_size: Input should be greater than or equal to 1, not 0",
    ),
    "duplicate_ids": (
        f"sources=[{A}, {A}], destinations=[{OUT})]",
        "a: the id 'a' is already taken by a source (give every node an id of its own)",
    ),
    "one_id_for_both_ends": (
        f'sources=[{A}], destinations=[Destination("a", {DESTINATION})]',
        "a: the id 'a' is already taken by a source (give every node an id of its own)",
    ),
    "a_cycle": (
        f'sources=[{A}], processors=[Processor("x", step, after=["a", "y"]), Processor("y", step, after="x")], '
        f'destinations=[{OUT}, after="y")]',
        "processors.x: the graph has a cycle: x → y → x (take one of these `after` away)",
    ),
    "no_source": (f"sources=[], destinations=[{OUT})]", "sources: a pipeline needs at least one source"),
    "no_destination": (f"sources=[{A}], destinations=[]", "destinations: a pipeline needs at least one destination"),
    "a_loose_source": (
        f'sources=[{A}, {B}], destinations=[{OUT}, after="a")]',
        "sources.b: its records go nowhere (let a destination come after='b')",
    ),
    "a_loose_processor": (
        f'sources=[{A}], processors=[Processor("x", step)], destinations=[{OUT}, after="a")]',
        "processors.x: its records go nowhere (let a destination come after='x')",
    ),
    "after_nobody": (
        f'sources=[{A}], destinations=[{OUT}, after="aa")]',
        "out.after: there is no node 'aa' (did you mean 'a'?)",
    ),
    "not_a_list": (
        f"sources={A}, destinations={OUT})",
        "sources: must be a list, not a Source (write sources=[…])",
        "destinations: must be a list, not a Destination (write destinations=[…])",
    ),
    "no_processor": (
        f'sources=[{A}], processors=[5, Processor("x", "json.decod")], destinations=[{OUT})]',
        "processors.int.processor: must be a function or a processor, not 5",
        "processors.x.processor: there is no processor plugin 'json.decod' (did you mean 'json.decode'?)",
    ),
    "a_processor_without_a_parameter": (
        f"sources=[{A}], processors=[lambda: None], destinations=[{OUT})]",
        "processors.lambda: cannot be called with a record: too many positional arguments (it must take one argument)",
    ),
    "a_processor_that_yields": (
        f"sources=[{A}], processors=[lambda record: (yield record)], destinations=[{OUT})]",
        "processors.lambda: has a yield, so its calls return no records (return a list of them)",
    ),
    "dead_letters": (
        f'sources=[{A}], destinations=[{OUT})], dead_letters="drop"',
        "dead_letters: must be DeadLetters, not 'drop' (write DeadLetters('drop'))",
    ),
    "a_dead_letter_handler": (
        f'sources=[{A}], destinations=[{OUT})], dead_letters=DeadLetters("dorp")',
        'dead_letters.handler: must be "stop", "drop", "journal", a destination connector or a callable, not \'dorp\''
        " (did you mean 'drop'?)",
    ),
}


def test_all_mistakes_are_named_with_their_line_before_anything_starts(folder: Folder) -> None:
    folder.numbers(1)
    folder.define("".join(f'{id} = Pipeline("{id}", {text})\n' for id, (text, *_) in MISTAKES.items()), GIVEN)
    answer = folder.run()
    lines = answer.stderr.splitlines()
    expected = [
        f"p.py:{line}: {id}.{mistake}"
        for line, (id, (_, *mistakes)) in enumerate(MISTAKES.items(), (HEAD + GIVEN).count("\n") + 1)
        for mistake in mistakes
    ]

    assert answer.code == 2
    assert lines[:-1] == expected
    assert lines[-1] == f"{len(expected)} mistakes; nothing was started"
    assert folder.untouched


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("import conduit_conectors", 3, ("error: p.py:5: imports 'conduit_conectors'", "mean 'conduit_connectors'?")),
        ("import nowhere_to_be_found", 3, ("error: p.py:5: imports 'nowhere_to_be_found'", "install it for")),
        ("from conduit_connectors import flie", 2, ("p.py:5: ", "'flie'", "did you mean 'file'?")),
        ("import conduit_connectors.flie", 2, ("p.py:5: ", "'conduit_connectors.flie'", "did you mean 'file'?")),
        ("from conduit_py import Pipelin", 2, ("p.py:5: ", "'Pipelin'", "did you mean 'Pipeline'?")),
        ("pipeline = Pipline()", 2, ("p.py:5: NameError: name 'Pipline' is not defined",)),
        ("pipeline = Pipeline(", 2, ("p.py:5: '(' was never closed",)),
    ],
)
def test_a_misspelt_file_is_answered_with_its_line(folder: Folder, line: str, code: int, words: Sequence[str]) -> None:
    folder.define(f"{line}\n")

    assert folder.run().has(code, *words)
    assert folder.untouched


# State that cannot be used.


def make_file(state: Path) -> None:
    state.write_text("mine")


def make_garbage(state: Path) -> None:
    state.mkdir()
    (state / "state.db").write_bytes(b"garbage" * 1000)


def make_foreign(state: Path) -> None:
    state.mkdir()
    with sqlite3.connect(state / "state.db") as connection:
        connection.execute("CREATE TABLE mine (value)")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_file, ("error: state directory state cannot be used: it is, or lies below, a file", "with --state")),
        (make_garbage, ("error: state/state.db is damaged", "put back a copy", "--state")),
        (make_foreign, ("error: state/state.db was not written by conduit-py", "move it away")),
    ],
)
def test_state_that_is_not_ours_is_left_as_it_is(
    folder: Folder, make: Callable[[Path], None], words: Sequence[str]
) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    state = folder.path / "state"
    make(state)
    before = (state if state.is_file() else state / "state.db").read_bytes()

    assert folder.run("--state", "state").has(3, *words)
    assert (state if state.is_file() else state / "state.db").read_bytes() == before
    assert folder.arrived() == []
    assert folder.run("--state", "another").has(0)
    assert folder.arrived() == [1, 2]


def test_damaged_state_is_never_believed_and_a_copy_of_it_goes_on(folder: Folder) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    first = folder.run()
    state = folder.path / ".conduit" / "p" / "state.db"
    sound = state.read_bytes()
    state.write_bytes(sound[:4096] + b"\xff" * (len(sound) - 4096))
    damaged = folder.run()
    state.write_bytes(sound)
    with (folder.path / "in.jsonl").open("a") as file:
        file.write('{"n":3}\n')

    assert first.has(0)
    assert damaged.has(3, "error: .conduit/p/state.db is damaged", "put back a copy")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


def test_state_in_use_is_refused_until_it_is_free(folder: Folder) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    state = folder.path / "state"
    state.mkdir()
    with (state / "lock").open("w+") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = folder.run("--state", "state")

    assert refused.has(3, f"error: state directory state is in use by process {os.getpid()}", "stop that process")
    assert folder.arrived() == []
    assert folder.run("--state", "state").has(0)
    assert folder.arrived() == [1, 2]


# Processors that fail.

CROWD = """
def crowd(record):
    if record.payload["n"] % 3 == 0:
        raise ValueError("three is a crowd")
    return record

async def keep(letter):
    with open("kept.jsonl", "a") as kept:
        kept.write(json.dumps(letter.record.payload.after) + "\\n")

def keep_slowly(letter):
    with open("kept.jsonl", "a") as kept:
        kept.write(json.dumps(letter.record.payload.after) + "\\n")

def fail(letter):
    raise OSError("the shelf is full")
"""
NUMBERS = list(range(1, 11))
CROWDS = [3, 6, 9]
OTHERS = [number for number in NUMBERS if number not in CROWDS]


def test_refused_records_are_kept_by_a_dead_letter_destination(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=KEEP, head=CROWD)

    assert folder.run().has(0)
    assert folder.arrived() == OTHERS
    assert folder.letters() == [("crowd", {"n": number}) for number in CROWDS]
    assert {letter["error"] for letter in folder.lines("dead.jsonl")} == {"ValueError: three is a crowd"}


@pytest.mark.parametrize("handler", ["keep", "keep_slowly"])
def test_refused_records_are_given_to_a_function(folder: Folder, handler: str) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=f"DeadLetters({handler})", head=CROWD)

    assert folder.run().has(0)
    assert (folder.arrived(), folder.arrived("kept.jsonl")) == (OTHERS, CROWDS)


def test_dropped_records_are_each_logged(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters='DeadLetters("drop")', head=CROWD)
    answer = folder.run()

    assert answer.has(0)
    assert answer.stderr.count("dropped a record of in that crowd refused: ValueError: three is a crowd") == 3
    assert "3 dead letters" in answer.stdout
    assert folder.arrived() == OTHERS


def test_a_processor_that_raises_shows_its_line_to_those_who_debug(folder: Folder) -> None:
    folder.numbers(3)
    folder.pipeline(processors="[crowd]", dead_letters=KEEP, head=CROWD)
    command = [str(COMMAND), "run", "p.py", "--debug"]
    said = subprocess.run(command, cwd=folder.path, capture_output=True, text=True, timeout=300).stderr

    assert 'p.py", line 8, in crowd' in said
    assert "ValueError: three is a crowd" in said


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ('DeadLetters("stop")', ("crowd refused a record: ValueError: three is a crowd", "dead_letter.not_allowed")),
        ("DeadLetters(fail)", ("could not be stored: OSError: the shelf is full", "three is a crowd", "mend the")),
    ],
)
def test_a_refused_record_that_nobody_takes_stops_the_pipeline_and_is_there_next_time(
    folder: Folder, handler: str, words: Sequence[str]
) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[crowd]", dead_letters=handler, head=CROWD)
    stopped = folder.run()
    folder.pipeline()
    resumed = folder.run()

    assert stopped.has(1, "p: failed in crowd: ", *words)
    assert resumed.has(0)
    # What came after the first refused record may have arrived before it was known that nobody takes it.
    assert sorted(in_order(folder.arrived(), repeats_max=5)) == NUMBERS


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("5", "returned int: return a Record, None or a list of Records, or raise"),
        ('{"n": 1}', "returned dict: return a Record"),
        ("[record, 5]", "returned int: return a Record"),
        ("(record, record)", "returned tuple: return a Record"),
    ],
)
def test_a_processor_that_returns_something_else_is_stopped_and_named(folder: Folder, result: str, words: str) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(processors="[step]", dead_letters=KEEP, head=f"def step(record):\n    return {result}\n")
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, f"p: failed: step: {words}", "[contract.broken]")
    assert (folder.arrived(), folder.letters()) == ([], [])
    assert folder.run().has(0)
    assert folder.arrived() == NUMBERS


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "must return one result per record of the batch, not NoneType"),
        ("list(batch)[1:]", "returned 9 results for a batch of 10 records"),
    ],
)
def test_a_batch_processor_that_forgets_records_is_stopped_and_named(folder: Folder, result: str, words: str) -> None:
    folder.numbers(*NUMBERS)
    step = f"@processor(batch=True)\ndef step(batch):\n    return {result}\n"
    folder.pipeline(processors="[step]", dead_letters=KEEP, head=step)
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, f"p: failed: step: {words}")
    assert folder.run().has(0)
    assert folder.arrived() == NUMBERS


# Destinations that refuse.

PICKY = """
class Picky(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        refused = {index: "no threes" for index, record in enumerate(batch) if record.payload["n"] % 3 == 0}
        with open("out.jsonl", "a") as out:
            out.writelines(json.dumps(r.payload.after) + "\\n" for i, r in enumerate(batch) if i not in refused)
        return refused

class Broken(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        raise RuntimeError("no such luck")

class Confused(sdk.DestinationConnector[sdk.Options]):
    def write(self, batch):
        return {99: "who?"}

class Silent(sdk.SourceConnector[sdk.Options]):
    def read(self, n):
        return []
"""


def test_records_that_a_destination_refuses_are_dead_letters(folder: Folder) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(destination="Picky()", dead_letters=KEEP, head=PICKY)

    assert folder.run().has(0)
    assert folder.arrived() == OTHERS
    assert folder.letters() == [("out", {"n": number}) for number in CROWDS]


@pytest.mark.parametrize(
    ("destination", "dead_letters", "words"),
    [
        ("Picky()", "None", "failed in out: out refused a record: no threes [dead_letter.not_allowed]"),
        ("Broken()", KEEP, "failed: out: write failed: RuntimeError: no such luck [node.failed]"),
        ("Confused()", KEEP, "failed: out: write() refused record 99 of a batch of 10 [contract.broken]"),
        ("Picky()", "DeadLetters(Broken())", "a dead letter could not be stored: RuntimeError: no such luck; out had"),
    ],
)
def test_a_destination_that_fails_stops_the_pipeline_and_another_gets_everything(
    folder: Folder, destination: str, dead_letters: str, words: str
) -> None:
    folder.numbers(*NUMBERS)
    folder.pipeline(destination=destination, dead_letters=dead_letters, head=PICKY)
    stopped = folder.run()
    folder.pipeline()

    assert stopped.has(1, "p: ", words)
    assert folder.run().has(0)
    assert sorted(in_order(folder.arrived(), repeats_max=5)) == NUMBERS


def test_a_source_that_breaks_its_contract_is_named(folder: Folder) -> None:
    folder.pipeline(source="Silent()", head=PICKY)

    assert folder.run().has(1, "p: failed: in: read() returned nothing: wait for a record", "[contract.broken]")
