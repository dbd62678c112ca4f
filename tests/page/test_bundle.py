"""The bundle: what is committed is what the sources make, byte for byte, and holds nothing that the policy forbids."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from page_picture import PICTURE, digest_in, digest_of_page

from conduit_py.server.web import PATHS

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "web"
PAGE = ROOT / "conduit_py" / "server" / "page"
LINES_MAX = 350


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with their packages installed as the lock file says."""
    if shutil.which("npm") is None:
        pytest.skip("node is not here, and only a change of the page needs it")
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(WEB, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--no-audit"], cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


def test_what_is_committed_is_what_the_sources_make(sources: Path, tmp_path: Path) -> None:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=sources, check=True, timeout=300)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in PAGE.iterdir()
    }, "the page is not the newest: run `make page` and commit what it changes"


def test_the_picture_in_the_readme_is_of_this_page() -> None:
    assert digest_in(PICTURE.read_bytes()) == digest_of_page(), (
        "run `python tests/support/page_picture.py`, look at the picture, and commit it"
    )


def test_what_needs_no_browser_is_tested_without_one(sources: Path) -> None:
    ran = subprocess.run(["node", "--test"], cwd=sources, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stdout


def test_every_file_of_the_page_is_served_and_no_other() -> None:
    assert sorted(PATHS.values()) == sorted(path.name for path in PAGE.iterdir())


def test_nothing_is_loaded_from_elsewhere_and_no_markup_holds_code_or_style() -> None:
    index = (PAGE / "index.html").read_text()
    script = (PAGE / "page.js").read_text()

    assert re.findall(r'(?:src|href)="([^"]*)"', index) == ["favicon.svg", "page.css", "page.js"]
    assert "style=" not in index
    assert not re.search(r"<script[^>]*>[^<]|<style", index)
    assert "http" not in (PAGE / "page.css").read_text()
    # Names of things, not addresses that are asked for anything.
    assert set(re.findall(r"https?://[\w./-]*", script)) <= {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
    }
    assert not re.search(r"\beval\(|new Function\(", script)
    assert not any("innerhtml" in path.read_text().lower() for path in (WEB / "src").rglob("*.js"))


def test_the_lock_file_names_no_place_to_load_from() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()


def test_every_module_says_what_it_is_and_is_one_noun_long() -> None:
    modules = [*(WEB / "src").rglob("*.js"), *(WEB / "test").rglob("*.js"), WEB / "build.mjs"]
    silent = [path.name for path in modules if not path.read_text().startswith("/** ")]
    silent += [path.name for path in (WEB / "styles").glob("*.css") if not path.read_text().startswith("/* ")]

    assert silent == []
    assert [path.name for path in modules if len(path.read_text().splitlines()) > LINES_MAX] == []
