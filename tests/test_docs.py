"""Every Python block of the README and the docs runs, and so does every command they show."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from warm_python import COMMAND, run_bash, run_warm

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")

with_blocks = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", with_blocks, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """Blocks that begin with a file name become that file; the others go on in one program, as a reader would."""
    program: list[str] = []
    for language, text in BLOCK.findall(page.read_text()):
        if language == "console":
            _run_commands(text, tmp_path)
        else:
            named = FILE_NAME.match(text)
            if named:
                (tmp_path / named.group(1)).write_text(text)
            program.append(text)
    _run([sys.executable, "-c", "\n".join(program)], tmp_path)


def _run_commands(text: str, folder: Path) -> None:
    for line in text.splitlines():
        if line.startswith("$ ") and not line.startswith("$ make "):
            _run(_words_of(line[2:]) or ["bash", "-c", line[2:]], folder)


def _words_of(line: str) -> list[str]:
    """The words of a line that calls `conduit-py` alone, which needs no shell."""
    shell = shlex.shlex(line, posix=True, punctuation_chars=True)
    words = list(shell)
    alone = words[0] == COMMAND.name and not set("".join(words)) & set("|&;<>()$`*?~{}[]")
    return [str(COMMAND), *words[1:]] if alone else []


def _run(command: list[str], folder: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = run_bash(command[-1], cwd=folder) if command[0] == "bash" else run_warm(command, cwd=folder, env=environment)
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}{ran.stderr}"


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md")]
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert missing == []


def test_the_files_and_folders_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    missing = [name for name in named if not any(ROOT.glob(f"{name}")) and not any(ROOT.glob(f"conduit_py/**/{name}"))]

    assert len(named) > 40
    assert missing == []
