"""Folder: a folder in which a test writes pipelines and runs the command, and what it answered."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warm_python import run_command

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
        command = ["run", "p.py", *arguments]
        if under:
            line = ["bash", "-c", f'{under}; exec "$@"', "bash", str(COMMAND), *command]
            ran = subprocess.run(line, cwd=self.path, capture_output=True, text=True, timeout=300, check=False)
        else:
            ran = run_command(*command, cwd=self.path)
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
