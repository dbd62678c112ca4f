"""Every Python block of the README and the docs runs, and so does every command they show."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from quick_java import quick_java
from shown_output import all_pages
from warm_python import COMMAND, run_bash, run_warm
from warm_workers import warm_workers

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")

# Of some pages the output of commands is compared too: see test_shown_output.py.
with_blocks = [page for page in PAGES if BLOCK.search(page.read_text()) and page not in all_pages()]


@pytest.mark.parametrize("page", with_blocks, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """Blocks that begin with a file name become that file; the others go on in one program, as a reader would."""
    program: list[str] = []
    blocks = BLOCK.findall(page.read_text())
    spark = quick_java() | warm_workers() if any("pyspark" in text for _, text in blocks) else {}
    for language, text in blocks:
        if language == "console":
            _run_commands(text, tmp_path)
        else:
            named = FILE_NAME.match(text)
            if named:
                (tmp_path / named.group(1)).write_text(text)
            program.append(text)
    _run([sys.executable, "-c", "\n".join(program)], tmp_path, spark)


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


def _run(command: list[str], folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}
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


def test_the_runbook_says_what_to_do_with_every_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "dashboards" / "alerts.yml").read_text())
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "operate" / "runbook.md").read_text(), re.MULTILINE)

    assert len(alerts) > 10
    assert headings == alerts


def test_the_readme_counts_the_connectors_that_come_along() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "reference" / "connectors").glob("*.md")} - {"README"}

    assert f"| connectors that come along | {len(pages)} |" in (ROOT / "README.md").read_text()


def test_there_are_twelve_recipes_and_all_are_in_their_list() -> None:
    folder = ROOT / "docs" / "recipes"
    recipes = {page.name for page in folder.glob("*.md")} - {"README.md"}
    listed = re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)

    assert len(listed) == 12
    assert set(listed) == recipes


def test_the_example_of_yaml_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "yaml.md").read_text()
    (tmp_path / "orders.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    _run([str(COMMAND), "check", "orders.yaml"], tmp_path)


def test_the_files_and_folders_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    missing = [name for name in named if not any(ROOT.glob(f"{name}")) and not any(ROOT.glob(f"conduit_py/**/{name}"))]

    assert len(named) > 40
    assert missing == []
