"""House rules, held by a test: sizes, names, docstrings, no mocks, nothing left behind.

The figures have room to breathe: they are limits for the tree as a whole, not goals for a change.
"""

import ast
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("conduit_py", "connectors", "processors")
EVERYWHERE = (*PACKAGES, "tests", "benchmarks", "examples")
HOMES = {"conduit_py": ROOT, "conduit_connectors": ROOT / "connectors", "conduit_processors": ROOT / "processors"}

LINES_MAX = 350
TEST_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FILES_MAX = 275
MEDIAN_LINES_MIN = 120
SMALL_LINES = 70
SMALL_WITH_ONE_IMPORTER_MAX = 12
COMMENTS_SHARE_MIN = 0.02
PARTICIPLES_SHARE_MAX = 0.025
SILENT_LINES_MAX = 10

GRAB_BAGS = {"utils", "util", "helpers", "common", "base", "types", "constants", "misc", "shared"}
METAPHORS = {
    "arrivals", "border", "complaint", "courier", "crew", "desk", "difference", "encodable", "etiquette", "exhibit",
    "findings", "gather", "gathering", "handfuls", "holder", "intake", "killpoint", "lane", "mistake",
    "notice", "office", "outlet", "parcel", "pump", "reach", "receipt", "renewal", "sameness", "sheet", "tally",
    "trail", "vault", "written",
}  # fmt: skip
NOT_IN_NAMES = {
    "complaint", "courier", "crew", "desk", "drawer", "exhibit", "heard", "hears", "intake", "killpoint", "knew",
    "lane", "mistake", "mistakes", "outlet", "parcel", "pump", "sameness", "tally", "told",
}  # fmt: skip
"""Metaphors, and verbs of people. The API has a tally of a queue, and a name that others use stays."""
SHARED_NAMES = {"Source", "Destination", "Processor"}
"""Every connector has classes of these names, and so has a pipeline."""
IRREGULAR = {
    "begun", "bound", "built", "chosen", "done", "drawn", "driven", "found", "given", "held", "kept", "known", "left",
    "lost", "made", "met", "said", "sent", "shown", "taken", "told", "written",
}  # fmt: skip
IMPLEMENTED_BY_USERS = {"forwarded", "known"}
"""Methods of an outbox and of a tracker in a database of the user's own: a rename would break their classes."""
NO_PARTICIPLES = {"bed", "embed", "fed", "feed", "indeed", "led", "need", "red", "seed", "shed", "speed"}

# Spelled in halves, so that this file passes its own check.
LEFT_BEHIND = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")))
FAKERY = re.compile(
    "|".join(("unittest" + r"\.mock", "Magic" + "Mock", "monkeypatch" + r"\.setattr", "pytest" + "_mock"))
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def packages(*folders: str) -> Iterator[Path]:
    yield from (path.parent for path in files(*folders) if path.name == "__init__.py")


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def size(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages, by its full name."""
    found = {}
    for package, base in HOMES.items():
        for path in sorted((base / package).rglob("*.py")):
            name = ".".join(path.relative_to(base).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


class TestWhatIsSaid:
    def test_every_module_says_what_it_is(self) -> None:
        silent = [relative(path) for path in files(*EVERYWHERE) if not ast.get_docstring(parsed(path))]

        assert silent == []

    def test_every_public_class_states_its_promise(self) -> None:
        silent = [
            f"{relative(path)}: {node.name}"
            for path in files(*PACKAGES)
            for node in parsed(path).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
        ]

        assert silent == []

    def test_every_public_function_states_its_promise_unless_its_signature_says_it_all(self) -> None:
        """Rules of the acceptance suite are named by a sentence each."""
        silent = [
            f"{relative(path)}: {node.name}"
            for path in files(*PACKAGES)
            if not path.stem.endswith("_checks")
            for node in parsed(path).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
            if not ast.get_docstring(node) and size(node) > SILENT_LINES_MAX and not decorated(node, "overload")
        ]

        assert silent == []

    def test_a_package_says_what_is_inside(self) -> None:
        """Each module is named in the docstring of its package, the rooms and their values on the page of the code.

        Connectors and processors are found by their own names, which are in no list here.
        """
        page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
        silent, stale = [], []
        for folder in packages("conduit_py", "processors"):
            text = page if folder.name == "conduit_py" else ast.get_docstring(parsed(folder / "__init__.py")) or ""
            named = {name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([\w.]+/?)`", text)}
            inside = {path.stem for path in folder.glob("*.py")} | {
                path.parent.name for path in folder.glob("*/__init__.py")
            }
            if folder.name != "conduit_processors" and len(inside) > 2:
                silent += [f"{relative(folder)}: {name}" for name in sorted(inside - named - {"__init__"})]
        for folder in packages(*PACKAGES):
            text = ast.get_docstring(parsed(folder / "__init__.py")) or ""
            files_named = re.findall(r"`(\w+\.py)`", text)
            stale += [f"{relative(folder)}: {name}" for name in files_named if not (folder / name).exists()]
        for name in re.findall(r"`(\w+/[\w/*]+\.py)`", page):
            if not any(list(base.glob(name)) for base in (ROOT, ROOT / "conduit_py")):
                stale.append(f"architecture.md: {name}")

        assert silent == []
        assert stale == []

    def test_comments_say_why_where_it_is_not_obvious(self) -> None:
        texts = [path.read_text().splitlines() for path in files("conduit_py")]
        comments = sum(line.strip().startswith("#") for line in chain(*texts))

        assert comments / sum(map(len, texts)) > COMMENTS_SHARE_MIN


class TestSizes:
    def test_a_file_is_a_topic_that_can_be_read_in_one_sitting(self) -> None:
        long = [f"{relative(path)}: {lines(path)} lines" for path in files(*PACKAGES) if lines(path) > LINES_MAX]
        long += [
            f"{relative(path)}: {lines(path)} lines"
            for path in files("tests", "benchmarks", "examples")
            if lines(path) > TEST_LINES_MAX
        ]

        assert long == []

    def test_functions_can_be_read_at_a_glance(self) -> None:
        long = [
            f"{relative(path)}:{node.lineno} {node.name}: {size(node)} lines"
            for path in files(*EVERYWHERE)
            for node in functions(path)
            if size(node) > FUNCTION_LINES_MAX
        ]

        assert long == []

    def test_the_runtime_is_not_cut_into_crumbs(self) -> None:
        counts = [lines(path) for path in files("conduit_py")]
        importers = Counter(chain.from_iterable(imported(path) - {name} for name, path in modules().items()))
        small = [
            name
            for name, path in modules().items()
            if name.startswith("conduit_py") and path.name != "__init__.py"
            if lines(path) < SMALL_LINES and importers[name] == 1
        ]

        assert len(counts) <= FILES_MAX
        assert statistics.median(counts) >= MEDIAN_LINES_MIN
        assert len(small) <= SMALL_WITH_ONE_IMPORTER_MAX, small


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports."""
    ours, found = modules(), set[str]()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & ours.keys()) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & ours.keys()


class TestNames:
    def test_a_public_class_name_stands_for_one_class(self) -> None:
        """Plugins are named after their modules (`json.Decode`), so they and their options may share names."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        plugins = {
            value.rpartition(":")[2]
            for group, entries in project["entry-points"].items()
            if group.startswith("conduit_py.")
            for value in entries.values()
        }
        classes = defaultdict(set)
        for name, path in modules().items():
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].add(name)
        double = {
            name: sorted(places)
            for name, places in classes.items()
            if len(places) > 1 and name not in SHARED_NAMES | plugins and not name.endswith(("Options", "Arguments"))
        }

        assert double == {}

    def test_a_function_that_waits_is_named_by_a_verb(self) -> None:
        """Hooks are named after what happened, tests and rules of the acceptance suite by a sentence, blocks by a noun.

        In tests a verb may have a participle as its object: `read_committed`.
        """
        named = [
            (path, node)
            for path in files(*EVERYWHERE)
            if not path.stem.endswith("_checks")
            for node in functions(path)
            if isinstance(node, ast.AsyncFunctionDef) and node.name not in IMPLEMENTED_BY_USERS
            if not node.name.startswith(("on_", "test_")) and not decorated(node, "asynccontextmanager")
        ]
        ours = set(files(*PACKAGES))
        found = [
            f"{relative(path)}:{node.lineno} {node.name}"
            for path, node in named
            if is_participle(node.name if path in ours else node.name.strip("_").partition("_")[0])
        ]

        assert found == []

    def test_few_functions_are_named_by_a_participle(self) -> None:
        named = [node for path in files("conduit_py") for node in functions(path) if not decorated(node, "property")]
        participles = [node.name for node in named if is_participle(node.name)]

        assert len(participles) / len(named) < PARTICIPLES_SHARE_MAX, participles

    def test_no_module_is_a_grab_bag_or_a_metaphor(self) -> None:
        assert [relative(path) for path in files(*EVERYWHERE) if path.stem in GRAB_BAGS] == []
        assert [relative(path) for path in files(*EVERYWHERE) if path.stem in METAPHORS] == []

    def test_no_class_or_function_has_a_metaphor_in_its_name(self) -> None:
        found = [
            f"{relative(path)}:{node.lineno} {node.name}"
            for path in files(*EVERYWHERE)
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ClassDef | Function) and node.name != "TallyView"
            if not NOT_IN_NAMES.isdisjoint(word.lower() for word in re.findall(r"[A-Z]?[a-z]+", node.name))
        ]

        assert found == []

    def test_the_glossary_has_every_word_once(self) -> None:
        text = (ROOT / "docs" / "explanation" / "glossary.md").read_text()
        words = [word for row in re.findall(r"^\| ([\w ,-]+) \| [A-Z]", text, re.MULTILINE) for word in row.split(", ")]

        assert len(words) >= 60
        assert [word for word, count in Counter(words).items() if count > 1] == []


def is_participle(name: str) -> bool:
    """A name such as `_written` or `letters_stored` says what came of a call, not what the call does."""
    last = name.strip("_").rpartition("_")[2]
    return last in IRREGULAR or (last.endswith("ed") and len(last) > 4 and last not in NO_PARTICIPLES)


def decorated(node: Function, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in node.decorator_list)


@pytest.mark.parametrize("pattern", [LEFT_BEHIND, FAKERY], ids=["left behind", "fakery"])
def test_nothing_is_left_behind_and_nothing_is_mocked(pattern: re.Pattern[str]) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in files(*EVERYWHERE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []


def test_import_packages_have_no_package_above_them() -> None:
    """A top-level package called `connectors` would collide with a folder of the user's own."""
    assert not (ROOT / "connectors" / "__init__.py").exists()
    assert not (ROOT / "processors" / "__init__.py").exists()
