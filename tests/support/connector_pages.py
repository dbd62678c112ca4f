"""The reference page of each connector, and their index, from the classes behind the entry points.

`python tests/support/connector_pages.py` writes them. A connector that is registered has a page without further work;
its example is the file of its name in `examples/connectors`.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from conduit_py.cli.installed import option_rows
from conduit_py.sdk import EndpointSource, Lag, WriteGuarantee, registry
from conduit_py.sdk.queue import QueueSource
from conduit_py.telemetry import metrics
from conduit_py.telemetry.metric import Metric

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference" / "connectors"
EXAMPLES = ROOT / "examples" / "connectors"
CODE = ROOT / "connectors" / "conduit_connectors"
KINDS: tuple[registry.Kind, ...] = ("source", "destination")
COMMAND = "python tests/support/connector_pages.py"

WRITES = {
    WriteGuarantee.AT_LEAST_ONCE: "At least once: after a crash it writes again what was not acked. "
    "An exactly-once pipeline refuses it.",
    WriteGuarantee.IDEMPOTENT: "Exactly once in an exactly-once pipeline: it finds what it has by the delivery key. "
    "At least once in any other.",
    WriteGuarantee.STAGED: "Exactly once in an exactly-once pipeline: it stages, and shows what was committed. "
    "At least once in any other.",
    WriteGuarantee.TRANSACTIONAL: "Exactly once in an exactly-once pipeline: it carries the commit, records and "
    "checkpoint in one transaction. At least once in any other.",
}


@dataclass(frozen=True)
class ConnectorPage:
    """A connector under its name: a source, a destination, or both."""

    name: str
    module: str
    sides: dict[str, type[Any]]

    @property
    def file(self) -> str:
        return f"{self.name}.md"

    @property
    def example(self) -> Path:
        return EXAMPLES / f"{self.name.replace('.', '_')}.py"

    @cached_property
    def extra(self) -> str | None:
        """The extra of our distribution that has the packages which it imports."""
        imported = list(_packages(self.module))
        own = self.module.partition(".")[0]
        if imported and own in (metadata("conduit-dataflow").get_all("Provides-Extra") or ()):
            return own
        return next((registry.EXTRAS[each] for each in imported if each in registry.EXTRAS), None)

    def text(self) -> str:
        parts = [f"# {self.name}"]
        parts.append(f"Needs `pip install 'conduit-dataflow[{self.extra}]'`." if self.extra else "Needs nothing else.")
        if self.example.exists():
            parts += ["## Example", f"```py\n{self.example.read_text()}```"]
        parts += [part for side in self.sides for part in self._side(side)]
        return "\n\n".join([*parts, _origin()]) + "\n"

    def _side(self, kind: str) -> Iterator[str]:
        plugin = self.sides[kind]
        yield f"## As a {kind}"
        yield inspect.getdoc(plugin) or ""
        yield f"**Guarantee.** {guarantee(plugin)}"
        rows = [cells(row) for row in option_rows(plugin)]
        yield table(("option", "type", "default", ""), rows) if rows else "It takes no options."
        yield f"**Metrics of the {kind}**, beside [those of every node](../metrics.md#any-node):"
        yield table(("metric", "meaning"), [(f"`{each.name}`", each.meaning) for each in own_metrics(kind, plugin)])


@cache
def all_pages() -> list[ConnectorPage]:
    """One for each connector of `conduit_connectors` that an entry point names, in the order of their names."""
    found: dict[str, ConnectorPage] = {}
    for kind in KINDS:
        for name, entry in registry.installed(kind).items():
            package, _, module = entry.module.partition(".")
            # A connector of somebody else that is installed here is not ours to describe.
            if package == "conduit_connectors":
                page = found.setdefault(name, ConnectorPage(name, module, {}))
                page.sides[kind] = registry.load_plugin(kind, name)
    return [found[name] for name in sorted(found)]


def all_files() -> dict[str, str]:
    """The text of every file of the folder by its name."""
    pages = all_pages()
    return {"README.md": _index(pages)} | {page.file: page.text() for page in pages}


def guarantee(plugin: type[Any]) -> str:
    """What the class promises by its declarations."""
    if hasattr(plugin, "guarantee"):
        # A property depends on the options, and the docstring says how.
        return _BY_OPTIONS if isinstance(plugin.guarantee, property) else WRITES[plugin.guarantee]
    if issubclass(plugin, EndpointSource):
        return _BY_CLIENTS
    if not plugin.resumable:
        return "It cannot resume: what a killed process had read and not delivered is lost."
    if issubclass(plugin, QueueSource):
        if isinstance(plugin.others_may_repeat, property):
            return _BY_OPTIONS
        if plugin.others_may_repeat:
            return "At least once: a message that was not acked when the process died comes again as a new one."
        return "Each message once in an exactly-once pipeline, whichever worker it is delivered to; else at least once."
    said = ["It resumes after any record: at least once, and exactly once with a destination that can."]
    if plugin.has_groups:
        said.append("With `atomic=True` a transaction of its system is never committed in part.")
    if isinstance(plugin.repeatable, property):
        said.append("With some options a record may have another delivery key after a crash: `check` says so.")
    elif not plugin.repeatable:
        said.append("A record may have another delivery key after a crash, so a destination must not go by such keys.")
    return " ".join(said)


_BY_OPTIONS = "It depends on the options, as said above."
_BY_CLIENTS = (
    "It answers when a record is durable, and clients send again what was not answered: at least once. "
    "With a key, each record once in an exactly-once pipeline."
)


def own_metrics(kind: str, plugin: type[Any]) -> list[Metric]:
    """The metrics that a node of this kind has with this connector."""
    if kind == "destination":
        return list(metrics.DESTINATION.metrics)
    found = list(metrics.SOURCE.metrics)
    named = set(_measured_lag(plugin))
    found += [each for each in metrics.LAG.metrics if _LAG_FIELDS[each.name] in named]
    return [*found, *metrics.QUEUE.metrics] if issubclass(plugin, QueueSource) else found


_LAG_FIELDS = {
    metrics.LAG_RECORDS.name: "records",
    metrics.LAG_PARTITION.name: "partitions",
    metrics.LAG_BYTES.name: "bytes",
    metrics.LAG_RETAINED.name: "retained_bytes",
    metrics.LAG_SECONDS.name: "seconds",
}


def _measured_lag(plugin: type[Any]) -> Iterator[str]:
    """The fields of `Lag` that its method `lag` fills."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(plugin.lag)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Lag.__name__:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def _index(pages: list[ConnectorPage]) -> str:
    head = (
        "# Connectors\n\nOne page for each connector: what it promises, its options, its metrics, and an example. "
        "How to choose one,\nand what else to know about each: [connectors](../../../connectors/README.md)."
    )
    rows = [
        (
            f"[`{page.name}`]({page.file})",
            *(_mark(page.sides.get(kind)) for kind in KINDS),
            f"`conduit-dataflow[{page.extra}]`" if page.extra else "–",
        )
        for page in pages
    ]
    return "\n\n".join([head, table(("connector", "source", "destination", "needs"), rows), _origin()]) + "\n"


def _mark(plugin: type[Any] | None) -> str:
    return cell(registry.summary(plugin)) if plugin else "–"


def _origin() -> str:
    return f"These pages are generated from the classes: `{COMMAND}`."


def cells(row: tuple[str, ...]) -> tuple[str, ...]:
    name, of_type, default, meaning = (cell(each) for each in row)
    return f"`{name}`", of_type, default if default == "required" else f"`{default}`", meaning


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _packages(module: str) -> Iterator[str]:
    """The packages that a connector imports: first in its own files, also inside functions, then in ours it needs."""
    imported = [name for file in _files(module) for name in imports_of(file)]
    yield from (name.partition(".")[0] for name in imported)
    seen: set[str] = set()
    for name in imported:
        yield from _needed_at_import(name, seen)


def _needed_at_import(name: str, seen: set[str]) -> Iterator[str]:
    """The packages without which a module of ours cannot be imported; nothing if it is not ours."""
    package, _, module = name.partition(".")
    path = CODE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if package != CODE.name or name in seen or not file.exists():
        return
    seen.add(name)
    for statement in _parse(file).body:
        for imported in _names(statement):
            yield imported.partition(".")[0]
            yield from _needed_at_import(imported, seen)


def _files(module: str) -> list[Path]:
    path = CODE / module.replace(".", "/")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@cache
def imports_of(file: Path) -> list[str]:
    """The names of all modules that a file imports, also inside functions."""
    return [name for node in ast.walk(_parse(file)) for name in _names(node)]


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module


def write_all() -> None:
    """Write every page, and remove those of connectors that are gone."""
    files = all_files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in FOLDER.glob("*.md"):
        if file.name not in files:
            file.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    write_all()
