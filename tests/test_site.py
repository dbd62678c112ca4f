"""The site of the docs: it builds without a warning, and a browser that shows it asks nobody else for anything."""

import html
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ELSEWHERE = r"(?:https?:)?//"
LOADED = re.compile(
    rf"""<[^>a][^>]*\ssrc(?:set)?=["']?{ELSEWHERE}[^>]*>  # an image, a script, a frame
    |<link\s[^>]*href=["']?{ELSEWHERE}[^>]*>              # a style sheet, a font, a hint to connect
    |url\(\s*["']?{ELSEWHERE}[^)]*\)
    |@import\s+["']{ELSEWHERE}[^;]*
    |class="mermaid"                                      # its script would come from a CDN
    """,
    re.VERBOSE | re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by `make docs`, which installs what it needs where that is missing, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--old-file=.venv/.ready", "docs", f"SITE={folder}"]
    made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def test_warnings_are_errors() -> None:
    """With `--quiet`, mkdocs counts no warnings."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in line)

    assert "--strict" in line
    assert "quiet" not in line


def _loaded(page: Path) -> Iterator[str]:
    yield from (found[0] for found in LOADED.finditer(page.read_text()))


def test_a_browser_asks_nobody_but_the_site(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    asked = {str(file.relative_to(site)): found for file in files if (found := list(_loaded(file)))}

    assert len(files) > 100
    assert asked == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<img alt="" src=//cdn.example/x.png>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        "body { background: url(https://cdn.example/x.png) }",
        '@import "https://fonts.example/css";',
    ],
)
def test_what_a_browser_would_ask_for_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(text)

    assert len(list(_loaded(page))) == 1


def test_the_first_page_is_the_readme_and_its_links_stay_in_the_site(site: Path) -> None:
    text = (site / "index.html").read_text()

    assert "without losing one" in text
    assert 'href="explanation/invariants.html"' in text
    assert (site / "decisions" / "index.html").exists()


def test_a_search_finds_what_to_do_before_why_it_is_so(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {entry["location"]: entry.get("boost", 1) for entry in entries}

    assert boosts["how-to/handle-dead-letters.html"] == 2
    assert max(boost for page, boost in boosts.items() if page.startswith("decisions/0")) < 0.1


def test_what_is_copied_can_be_pasted(site: Path) -> None:
    """Commands without prompts and output, and files without the line that names them."""
    copied = {page.stem: copied_of(page) for page in (site / "learn" / "tutorial.html", *site.glob("recipes/*.html"))}

    assert copied["tutorial"][0].splitlines()[:2] == [
        "cat > orders.jsonl <<'END'", '{"id": 1, "customer": "ada", "amount": "12.50"}',
    ]  # fmt: skip
    assert copied["tutorial"][1] == "conduit-py check shop.py\nconduit-py run shop.py\ncat copy.jsonl"
    assert copied["clean-a-csv-file"][0].startswith("id,day,amount\n1,")
    assert not any(re.search(r"^(\$|>|# \w+\.csv) ", text, re.MULTILINE) for each in copied.values() for text in each)


def copied_of(page: Path) -> list[str]:
    return [html.unescape(text) for text in re.findall(r'data-copy="([^"]*)"', page.read_text())]
