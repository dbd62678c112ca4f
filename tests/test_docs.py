"""Every Python block of the README and the docs runs, and every command prints what is shown, but for numbers."""

import json
import os
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from cyclopts import CycloptsError
from quick_java import quick_java
from shown_output import all_pages, commands_of, masked, run_line
from warm_python import COMMAND, run_warm
from warm_workers import warm_workers

from conduit_py.cli.main import app

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
    for command in commands_of(text):
        if not command.line.startswith("make "):
            ran = run_line(command.line, folder)
            assert ran.returncode == 0, f"{command.line}\n{ran.stdout}"
            assert not command.expected or _without_numbers(ran.stdout) == _without_numbers(command.expected)


def _without_numbers(text: str) -> str:
    """What is the same in each run. Positions are in base64, and how many records a tap leaves out is by chance."""
    text = re.sub(r" \(\d+ before it not shown\)", "", masked(text))
    return re.sub(r"\d+(?:[.:]\d+)*", "N", re.sub(r"\b(?=\d*[A-Za-z])[A-Za-z0-9+/]{16,}=*", "POSITION", text))


def _run(command: list[str], folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}
    ran = run_warm(command, cwd=folder, env=environment)
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}{ran.stderr}"


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
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


NAMED_TEST = re.compile(r"(?<![.\w])(?:tests/[\w/]*)?test_\w+(?:\.py|\*\.py|…)?")


def test_tests_that_are_named_exist() -> None:
    """Those that show a promise: a file, a test, or with `…` the beginning of its name."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    files = {str(path.relative_to(ROOT)) for path in texts} | {path.name for path in texts}
    tests = {name for text in texts.values() for name in re.findall(r"def (test_\w+)", text)}
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in EVERY_PAGE
        for name in NAMED_TEST.findall(ANY_BLOCK.sub("", page.read_text()))
    }
    missing = {
        (page, name) for page, name in named if not any(fnmatch(each, name.replace("…", "*")) for each in files | tests)
    }

    assert len(named) > 100
    assert missing == set()


ANY_BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
EVERY_PAGE = [*PAGES, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md")]
COMMAND_LINE = re.compile(
    r"^\s*(?:\$ |ExecStart=)?(?:.*? -m conduit_py\.cli\.main|[\w/.-]*conduit-py) ([^#…|]*?)(?:\s{3,}.*|\s+\|.*)?$"
)


def _blocks(*languages: str) -> list[tuple[str, str]]:
    """Blocks that no test runs, because they need a machine, a cluster or a choice: the page and the text."""
    return [
        (str(page.relative_to(ROOT)), text)
        for page in EVERY_PAGE
        for language, text in ANY_BLOCK.findall(page.read_text())
        if language in languages
    ]


def test_commands_that_are_only_shown_have_arguments_that_exist() -> None:
    lines = [
        (page, shown[1])
        for page, text in _blocks("text", "", "ini")
        for line in text.replace("\\\n", " ").splitlines()
        # The help of commands is generated.
        if (shown := COMMAND_LINE.match(line)) and page != "docs/reference/cli.md"
    ]
    for page, line in lines:
        try:
            app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
        except CycloptsError as error:
            pytest.fail(f"{page}: conduit-py {line}: {error}")

    assert len(lines) >= 20


def test_extras_that_are_named_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        (str(page.relative_to(ROOT)), extra)
        for page in EVERY_PAGE
        for several in re.findall(r"conduit-dataflow\[([\w,-]+)\]", page.read_text())
        for extra in several.split(",")
    }

    assert len(named) > 20
    assert {(page, extra) for page, extra in named if extra not in extras} == set()


def test_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (str(page.relative_to(ROOT)), target)
        for page in EVERY_PAGE
        for target in re.findall(r"(?:`|^\$ )make ([a-z][\w-]*)", page.read_text(), re.MULTILINE)
    }

    assert len(named) > 10
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_data_that_is_shown_can_be_read() -> None:
    readers: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for language, read in readers.items():
        blocks = _blocks(language)
        assert blocks
        for page, text in blocks:
            assert read(textwrap.dedent(text)), page
