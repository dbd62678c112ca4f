"""What mkdocs needs to build the site beside `docs/`: pages of other folders, lists of pages, and links between them.

`mkdocs.yml` names this file as a hook. A link to a page of ours leads to that page of the site. A link to any other
file of the repository, such as a test, becomes its path, because the site does not have it.
"""

import html
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath("docs")
OUTSIDE = {
    "README.md": "index.md",
    "connectors/README.md": "reference/connectors-guide.md",
    "processors/README.md": "reference/processors-guide.md",
    "benchmarks/README.md": "explanation/benchmarks.md",
    "dashboards/README.md": "operate/dashboards.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "SECURITY.md": "operate/security-policy.md",
    "docs/decisions": "decisions/index.md",
}
"""Pages that are not below `docs/`, and their names in the site."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s:]+)\)")
FENCE = re.compile(r"^( *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the pages of a folder in the place of its `*`."""
    config["nav"] = _expand(config["nav"])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside of `docs/`."""
    for origin, name in OUTSIDE.items():
        text = _list_of_decisions() if name == "decisions/index.md" else (ROOT / origin).read_text()
        files.append(File.generated(config, name, content=text))
    return files


BOOST = {"learn": 2.0, "how-to": 2.0, "operate": 1.5, "recipes": 1.5, "decisions": 0.05}
"""What a search makes of pages of a folder. A decision has its subject in its title, and few look for it."""


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Have every link lead to a page of the site, or show the path of the file that it leads to."""
    name = page.file.src_uri
    page.meta["search"] = {"boost": BOOST.get(name.partition("/")[0], 1.0)}
    origin = next((PurePosixPath(path) for path, site in OUTSIDE.items() if site == name), DOCS / name)
    # The list of decisions stands for its folder, and its links are made for it.
    folder = origin if origin.suffix != ".md" else origin.parent
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda found: _link(found, folder, name), part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(content: str, **_: Any) -> str:
    """Have the button of a block copy what a reader needs: commands without what they print, and files without name."""
    return CODE.sub(_with_copy, content)


CODE = re.compile(r'<div class="language-(console|text) highlight">(.*?)</div>', re.DOTALL)
COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)", re.MULTILINE)
FILE_NAME = re.compile(r"# [\w./-]+\.(?:csv|jsonl)\n")


def _with_copy(found: re.Match[str]) -> str:
    language, block = found.groups()
    text = html.unescape(re.sub(r"<[^>]*>", "", block)).lstrip("\n")
    if language == "console":
        text = "\n".join(command.replace("\n> ", "\n") for command in COMMAND.findall(text))
    elif named := FILE_NAME.match(text):
        text = text[named.end() :]
    return f'<div class="language-{language} highlight" data-copy="{html.escape(text)}">{block}</div>'


def _link(found: re.Match[str], folder: PurePosixPath, name: str) -> str:
    image, text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path:
        return found[0]
    origin = normpath(str(folder / path))
    site = OUTSIDE.get(origin) or _below_docs(origin)
    if site:
        return f"{image}[{text}]({relpath(site, PurePosixPath(name).parent)}{mark}{anchor})"
    if not (ROOT / origin).exists():
        return found[0]  # It leads nowhere, and fails the build.
    return text if text == f"`{origin}`" else f"{text} (`{origin}`)"


def _below_docs(origin: str) -> str | None:
    path = PurePosixPath(origin)
    return str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) and path.suffix else None


def _expand(nav: list[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            found += [{title: _expand(at) if isinstance(at, list) else at for title, at in entry.items()}]
        elif entry.endswith("/*"):
            found += _titles(ROOT / DOCS / entry.removesuffix("/*"))
        else:
            found.append(entry)
    return found


def _titles(folder: Path) -> list[dict[str, str]]:
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    return [{_title(page): str(page.relative_to(ROOT / DOCS))} for page in pages]


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def _list_of_decisions() -> str:
    rows = [f"- [{_title(page)}]({page.name})" for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    return "\n".join(["# Decisions", "", "Why things are as they are, and what was rejected.", "", *rows, ""])
