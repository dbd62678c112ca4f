"""Pages that show what commands print, as the tutorial and the recipes do: run them, and compare or fill in the rest.

`python tests/support/shown_output.py [PAGE …]` writes the real output of every command into the pages. A block that
begins with the name of a file is that file. In a console block a line with `$ ` is a command, lines with `> ` continue
it, and all other lines are what it prints. Times, ports and ids differ from run to run, and are compared as such.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from warm_python import COMMAND, run_bash, run_warm

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "docs" / "learn", ROOT / "docs" / "recipes")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml|csv|jsonl))\n")
DIFFERENT = [
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\b[\d.]+ (s|ms|min) \([\d.,k]+/s\)", "T"),
        (r"(, \d+ warnings?)? in [\d.]+s\b", " in T"),  # those are of modules that the nursery has imported
        (r"\b\d+(s|m|h)( ago)?\b", "T"),
        (r"\bconduit-py \d+\.\d+\.\d+", "conduit-py VERSION"),
        (r"127\.0\.0\.1:\d+", "HOST"),
        (r"\b\d\d\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?\b", "TIME"),
        (r"\b[a-z2-7]{16}\b", "ID"),
        (r" +", " "),
    )
]


@dataclass
class ShownCommand:
    """A command of a page, what the page says that it prints, and what it has printed."""

    line: str
    expected: str = ""
    printed: str = ""

    def is_true(self) -> bool:
        return masked(self.expected) == masked(self.printed)


@dataclass
class FollowedPage:
    """A page whose blocks have been done from top to bottom in a folder."""

    path: Path
    folder: Path
    commands: list[ShownCommand] = field(default_factory=list)

    def follow(self) -> str:
        """The text of the page with what its commands really print, where that differs from what it says."""
        return BLOCK.sub(self._do, self.path.read_text())

    def _do(self, block: re.Match[str]) -> str:
        language, text = block.groups()
        named = FILE_NAME.match(text)
        if language == "console":
            shown = [self._run(command) for command in commands_of(text)]
            return f"```console\n{''.join(shown)}```"
        if named:
            file = self.folder / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            # Lines of data have no comments.
            file.write_text(text if file.suffix in (".py", ".yaml") else text.partition("\n")[2])
        elif language in ("python", "yaml"):
            raise ValueError(f"{self.path}: a block of {language} does not begin with the name of its file")
        return block[0]

    def _run(self, command: ShownCommand) -> str:
        self.commands.append(command)
        ran = run_line(command.line, self.folder)
        command.printed = ran.stdout.replace(str(self.folder.resolve()), "…")
        assert ran.returncode == 0, f"{self.path.name}: {command.line}\n{command.printed}"
        output = command.expected if command.is_true() else command.printed
        first, *more = command.line.split("\n")
        return "".join(f"{line}\n" for line in (f"$ {first}", *(f"> {each}" for each in more))) + output


def run_line(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a line of the shell. What goes to stderr is part of the output, as on a screen."""
    words = line.split()
    if words[0] == COMMAND.name and not set(line) & set("|&;<>()$`*?~{}[]'\"#\n"):
        return run_warm([COMMAND, *words[1:]], cwd=folder, stderr=subprocess.STDOUT)
    if "KILL" in words:  # a fork of the nursery would not be killed, only what stands for it
        environment = os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
    return run_bash(f"exec 2>&1\n{line}", cwd=folder)


def commands_of(text: str) -> Iterator[ShownCommand]:
    found: ShownCommand | None = None
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if found:
                yield found
            found = ShownCommand(line[2:].rstrip("\n"))
        elif found and line.startswith("> ") and not found.expected:
            found.line += f"\n{line[2:-1]}"
        elif found:
            found.expected += line
    if found:
        yield found


def masked(text: str) -> str:
    for pattern, mask in DIFFERENT:
        text = pattern.sub(mask, text)
    return text.strip()


def all_pages() -> list[Path]:
    return sorted(page for folder in FOLDERS for page in folder.glob("*.md"))


def fill_in(pages: list[Path]) -> None:
    """Write into each page what its commands print."""
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(FollowedPage(page, Path(folder)).follow())


if __name__ == "__main__":
    fill_in([Path(each) for each in sys.argv[1:]] or all_pages())
