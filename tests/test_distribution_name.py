"""The distribution is called conduit-dataflow: `conduit-py` on PyPI belongs to another project."""

import os
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".js", ".mjs", ".html", ".cfg", ".sh", ""}
SKIPPED = {".git", ".venv", "node_modules", "dist"}
FOREIGN = r"conduit[-_]py"
NAMES_IT = re.compile(
    "|".join(
        (
            rf"\b(pip install|uv add|poetry add|uvx|pipx \w+)\b(\s+-[\w-]+)*\s+[\"']?{FOREIGN}(?![\w./-])",
            rf"(?<![\w.-]){FOREIGN}\[",
            rf"\b(version|requires|distribution|metadata)\(\s*[\"']{FOREIGN}[\"']",
            rf"pypi\.org/\w+/{FOREIGN}\b",
            rf"^(name|Name)\s*[:=]\s*\"?{FOREIGN}\"?\s*$",
        )
    ),
    re.MULTILINE,
)


def texts() -> Iterator[Path]:
    # Not entered, not only left out: other tests write into caches and delete there while this one looks.
    for folder, folders, files in os.walk(ROOT):
        at = Path(folder)
        folders[:] = [name for name in folders if name not in SKIPPED and (at != ROOT or _is_ours(name))]
        paths = (at / name for name in sorted(files) if at != ROOT or _is_ours(name))
        yield from (path for path in paths if path.suffix in SUFFIXES and path != Path(__file__))


def _is_ours(name: str) -> bool:
    """Whether something at the top is: caches and the state of runs are not; `.ci` is."""
    return name == ".ci" or not name.startswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "pip install conduit-py",
        "pip install --upgrade 'conduit-py'",
        "pip install 'conduit-py[postgres]'",
        "needs `conduit-py[sqs]`",
        "uv add conduit_py",
        'importlib.metadata.version("conduit-py")',
        'name = "conduit-py"',
        "https://pypi.org/project/conduit-py/",
    ],
)
def test_the_pattern_finds_every_way_to_name_the_foreign_package(text: str) -> None:
    assert NAMES_IT.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip uninstall --yes conduit-py",
        "make install  # .venv/bin/conduit-py",
        "from conduit_py import sdk",
        "`conduit-py run`",
    ],
)
def test_the_pattern_leaves_the_command_and_the_import_alone(text: str) -> None:
    assert not NAMES_IT.search(text)


def test_nothing_tells_a_user_to_install_the_foreign_package() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        # The whole text first: to search a million lines one by one takes ten times as long.
        if NAMES_IT.search(text := path.read_text(errors="replace"))
        for number, line in enumerate(text.splitlines(), 1)
        if NAMES_IT.search(line)
    ]

    assert found == []


def test_the_distribution_has_its_own_name_and_the_command_keeps_its() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["name"] == "conduit-dataflow"
    assert project["scripts"] == {"conduit-py": "conduit_py.cli.main:main"}
    assert "conduit-py" not in {entry.dist.name for entry in entry_points(group="conduit_py.sources") if entry.dist}
