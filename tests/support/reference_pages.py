"""The reference pages beside those of connectors, from the code: processors, the command, the HTTP API, YAML, Python.

`python tests/support/reference_pages.py` writes them. Keys of YAML and variables of the environment are found in the
code, and what they mean is in `key_meanings.py`: one that is missing there, or there alone, is an error.
"""

import importlib
import inspect
import io
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import trio
import yaml
from connector_pages import all_pages as connector_pages
from connector_pages import cells, imports_of, table
from cyclopts import App
from key_meanings import ENVIRONMENT, FILES, YAML_HEAD, YAML_KEYS
from python_pages import module_page
from rich.console import Console

from conduit_py.cli.installed import option_rows
from conduit_py.cli.main import app
from conduit_py.config import yaml_file, yaml_nodes
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk import registry
from conduit_py.server.access import Policy
from conduit_py.server.serve import create_app
from conduit_py.server.service import Service
from conduit_py.store.memory import MemoryStore

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
COMMAND = "python tests/support/reference_pages.py"
ORIGIN = f"This page is generated from the code: `{COMMAND}`."
PUBLIC = (
    "conduit_py", "conduit_py.client", "conduit_py.sdk", "conduit_py.sdk.arrow", "conduit_py.sdk.queue",
    "conduit_py.sdk.spark", "conduit_py.sdk.template", "conduit_py.testing", "conduit_py.testing.cdc",
    "conduit_py.journal", "conduit_py.idempotency", "conduit_py.outbox", "conduit_py.steps", "conduit_py.spark",
)  # fmt: skip
WIDTH = 100
VARIABLE = re.compile(r"""["'](CONDUIT_[A-Z_]+)["']""")
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def all_files() -> dict[str, str]:
    """The text of every file by its path below docs/reference."""
    return {
        "cli.md": cli_page(),
        "http-api.md": http_page(),
        "yaml.md": yaml_page(),
        "configuration.md": configuration_page(),
        "python-api.md": python_page(),
        **{f"python/{module}.md": module_page(module, ORIGIN) for module in PUBLIC},
        "condensed.md": condensed_page(),
        "../llms.txt": llms_text(),
        **{f"processors/{name}": text for name, text in processor_files().items()},
    }


def processor_files() -> dict[str, str]:
    """A page for each processor, and their index."""
    rows = [
        (
            f"[`{name}`]({name}.md)",
            f"`{_class_of(plugin)}`",
            registry.summary(plugin).replace("|", "\\|"),
            f"`conduit-dataflow[{extra}]`" if (extra := _extra_of(plugin)) else "–",
        )
        for name, plugin in processors().items()
    ]
    head = """# Processors

One page for each processor that comes along: what it does, its options, and an example. Field paths, templates,
conditions and more about each: [processors](../../../processors/README.md). A function of yours is one too."""
    index = "\n\n".join([head, table(("processor", "class", "", "needs"), rows), ORIGIN]) + "\n"
    return {"README.md": index} | {f"{name}.md": _processor_page(name, plugin) for name, plugin in processors().items()}


@cache
def processors() -> dict[str, type[Any]]:
    found = registry.installed("processor")
    ours = sorted(name for name, entry in found.items() if entry.module.startswith("conduit_processors."))
    return {name: registry.load_plugin("processor", name) for name in ours}


def _class_of(plugin: type[Any]) -> str:
    return f"{plugin.__module__.split('.')[1]}.{plugin.__name__}"


def _processor_page(name: str, plugin: type[Any]) -> str:
    module = plugin.__module__.split(".")[1]
    rows = [cells(row) for row in option_rows(plugin)]
    parts = [
        f"# {name}",
        f"`conduit_processors.{_class_of(plugin)}`",
        *([f"Needs `pip install 'conduit-dataflow[{extra}]'`."] if (extra := _extra_of(plugin)) else ()),
        inspect.getdoc(plugin) or "",
        table(("option", "type", "default", ""), rows) if rows else "It takes no options.",
    ]
    examples = EXAMPLE.findall((ROOT / "processors" / "README.md").read_text())
    shown = next((text for text in examples if f"{_class_of(plugin)}(" in text), None)
    if shown:
        parts += ["## Example", f"```py\n{shown}```"]
    if plugin.stateful:
        parts.append("It has state, so it needs an [exactly-once pipeline](../../explanation/exactly-once.md).")
    parts.append(f"All of `{module}`: [processors](../../../processors/README.md). {ORIGIN}")
    return "\n\n".join(parts) + "\n"


def _extra_of(plugin: type[Any]) -> str | None:
    """The extra of our distribution without which a processor cannot be used."""
    module = plugin.__module__.split(".")[1]
    if module in (metadata("conduit-dataflow").get_all("Provides-Extra") or ()):
        return module
    imported = {name.partition(".")[0] for name in imports_of(Path(inspect.getfile(plugin)))}
    return next((extra for package, extra in registry.EXTRAS.items() if package in imported), None)


def cli_page() -> str:
    parts = ["# The command", "What `conduit-py` prints with `--help`, for each of its commands.", ORIGIN]
    for words, command in _commands(app, ()):
        parts += [f"## {' '.join(('conduit-py', *words))}", f"```text\n{_help_of(command, words)}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands(above: App, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    yield words, above
    for name in above:
        if not name.startswith("-"):
            yield from _commands(above[name], (*words, name))


def _help_of(command: App, words: tuple[str, ...]) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None, force_terminal=False)
    app.help_print([*words], console=console)
    return "\n".join(line.rstrip() for line in stream.getvalue().strip().splitlines())


def http_page() -> str:
    document = _openapi()
    parts = [
        "# The HTTP API",
        _ABOUT_HTTP,
        ORIGIN,
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += [f"## {method.upper()} {path}", operation["description"], _operation(method, path, operation)]
    return "\n\n".join(parts) + "\n"


_ABOUT_HTTP = """\
Everything that the commands and the page do. A running server has the whole description, with every schema, at
`/api/v1/openapi.json`. Clients send `Authorization: Bearer TOKEN`; its [role](../../SECURITY.md) decides what it may
do. Errors have the form `{"error": {"code", "message", "suggestion"}}`, with a [code](errors.md) that never changes.
Sources that take requests themselves are below `/hooks/PIPELINE/SOURCE`."""


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    role = Policy().required_role({"type": "http", "method": method.upper(), "path": re.sub(r"{\w+}", "x", path)})
    facts = [("role", f"`{role.name.lower()}`" if role else "none")]
    given = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    facts += [(f"`?{each['name']}=`", _sentence(each.get("description", ""))) for each in given]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if body:
        facts.append(("body", f"`{_schema_name(body)}`"))
    good = [code for code in operation["responses"] if code < "400"]
    refused = [code for code in operation["responses"] if code in ("404", "409", "503")]
    facts.append(("answers", ", ".join(good + refused)))
    return table(("", "value"), facts)


def _schema_name(schema: dict[str, Any]) -> str:
    named = schema.get("$ref") or next((each["$ref"] for each in schema.get("anyOf", ()) if "$ref" in each), "object")
    return str(named).rpartition("/")[2]


@cache
def _openapi() -> dict[str, Any]:
    """The description of an API that is never served."""

    async def describe() -> dict[str, Any]:
        async with trio.open_nursery() as nursery:
            store = MemoryStore()
            document = create_app(Service(Fleet(store, nursery), store, nursery), Policy()).openapi()
            nursery.cancel_scope.cancel()
        return document

    return trio.run(describe)


def yaml_keys() -> dict[str, list[str]]:
    """The keys of each section, as the code reads them."""
    return {
        "document": yaml_file.DOCUMENT_KEYS,
        "pipelines[]": yaml_file.PIPELINE_KEYS,
        "pipelines[].connectors[]": yaml_nodes.CONNECTOR_KEYS,
        "pipelines[].connectors[].rate": yaml_nodes.RATE_KEYS,
        "processors[]": yaml_nodes.PROCESSOR_KEYS,
        "pipelines[].dead-letter-queue": yaml_nodes.QUEUE_KEYS,
        "pipelines[].transaction": yaml_file.TRANSACTION_KEYS,
        "pipelines[].spark": yaml_file.SPARK_KEYS,
    }


def yaml_page() -> str:
    parts = [YAML_HEAD]
    for section, keys in yaml_keys().items():
        meanings = YAML_KEYS[section]
        if set(keys) != set(meanings):
            raise ValueError(f"key_meanings.py differs from the code in {section}: {set(keys) ^ set(meanings)}")
        rows = [(f"`{key}`", *meanings[key]) for key in keys]
        parts += [f"## {section}", table(("key", "meaning", "in Conduit"), rows)]
    return "\n\n".join([*parts, ORIGIN]) + "\n"


def configuration_page() -> str:
    found = {name for path in (ROOT / "conduit_py").rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    if found != set(ENVIRONMENT):
        raise ValueError(f"key_meanings.py differs from the code in the environment: {found ^ set(ENVIRONMENT)}")
    parts = [
        "# Configuration",
        "There is no configuration file. A pipeline is configured in its own file, and a server by the "
        "[options](cli.md#conduit-py-serve) of `serve`.\nWhat else has an effect is here.",
        "## Environment",
        table(("variable", "meaning"), [(f"`{name}`", ENVIRONMENT[name]) for name in sorted(ENVIRONMENT)]),
        "Variables of a pipeline are its own business: a Python file reads `os.environ`, and YAML has "
        "[references](yaml.md#references).",
        "## Files of a project",
        table(("file or folder", "meaning"), [(f"`{name}`", meaning) for name, meaning in FILES.items()]),
        ORIGIN,
    ]
    return "\n\n".join(parts) + "\n"


def python_page() -> str:
    parts = [
        "# The Python API",
        "Every public module and name: what is not here may change at any time. Each module has a page with the "
        "signatures and the whole texts.",
        ORIGIN,
    ]
    for module in PUBLIC:
        found = importlib.import_module(module)
        rows = [
            (f"`{name}`", _sentence(_doc_of(getattr(found, name)))) for name in sorted(found.__all__, key=str.lower)
        ]
        link = f"How they are called: [{module}](python/{module}.md)."
        parts += [f"## {module}", _sentence(inspect.getdoc(found) or ""), table(("name", "meaning"), rows), link]
    return "\n\n".join(parts) + "\n"


def _doc_of(value: Any) -> str:
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    # Of a value `getdoc` would give the text of its type.
    return f"a value of type {type(value).__name__}"


def _sentence(text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split())
    found = re.match(r"(.*?[.!?])(?: |$)", first)
    return (found[1] if found else first).replace("|", "\\|")


def condensed_page() -> str:
    """All that one has to know to write a pipeline, on one page, for people in a hurry and for programs."""
    readme = (ROOT / "README.md").read_text()
    blocks = [text for text in EXAMPLE.findall(readme) if text.startswith("# ")]
    connectors = [
        (f"`{page.name}`", kind, registry.summary(plugin).replace("|", "\\|"), _required(plugin))
        for page in connector_pages()
        for kind, plugin in page.sides.items()
    ]
    steps = [
        (f"`{name}`", registry.summary(plugin).replace("|", "\\|"), _required(plugin))
        for name, plugin in processors().items()
    ]
    commands = [
        (f"`{' '.join(('conduit-py', *words))}`", _sentence(str(command.help or "")))
        for words, command in _commands(app, ())
        if words
    ]
    return (
        "\n\n".join(
            [
                "# All on one page",
                _ABOUT_ALL,
                *(f"```py\n{text}```" for text in blocks),
                "## Commands",
                table(("command", ""), commands),
                "## Connectors",
                table(("name", "as", "", "required options"), connectors),
                "## Processors",
                table(("name", "", "required options"), steps),
                ORIGIN,
            ]
        )
        + "\n"
    )


_ABOUT_ALL = """\
conduit-py (`pip install conduit-dataflow`) runs pipelines of sources, processors and destinations in Python. A record
that a processor or destination refuses is a dead letter. `delivery` is `at_least_once` (default), `exactly_once` or
`at_most_once`. Plugins are `conduit_connectors.MODULE.Source` and `.Destination`, `conduit_processors.MODULE.CLASS`."""


def llms_text() -> str:
    """The pages of the site with their first sentences, for programs that read it: see llmstxt.org."""
    head = "# conduit-py\n\n> Move records between systems, in Python, without losing one.\n"
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    # Of pages that are generated for each plugin or decision, the index is enough.
    pages = [(section, page) for section, page in _pages_of(nav, "Start") if not page.endswith("*")]
    sections: dict[str, list[str]] = {"Start": ["- [All on one page](reference/condensed.md): what a pipeline needs"]}
    for section, page in pages:
        path = ROOT / "docs" / page
        if path.exists():
            title, _, text = path.read_text().partition("\n")
            parts = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n")
            first = next((part for part in parts if part.strip() and part.strip()[0] not in "#|!-"), "")
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", _sentence(first.strip()))
            sections.setdefault(section, []).append(f"- [{title.removeprefix('# ')}]({page}): {shown}")
    return "\n".join([head, *(f"## {name}\n\n" + "\n".join(lines) + "\n" for name, lines in sections.items())])


def _pages_of(nav: list[Any], section: str) -> Iterator[tuple[str, str]]:
    for entry in nav:
        if isinstance(entry, str):
            yield section, entry
        else:
            for title, below in entry.items():
                if isinstance(below, str):
                    yield section, below
                else:
                    yield from _pages_of(below, title if section == "Start" else section)


def _required(plugin: type[Any]) -> str:
    return ", ".join(f"`{row[0]}`" for row in option_rows(plugin) if row[2] == "required") or "–"


def write_all() -> None:
    """Write every page, and remove those of processors that are gone."""
    files = all_files()
    (FOLDER / "processors").mkdir(exist_ok=True)
    for file in (FOLDER / "processors").glob("*.md"):
        if f"processors/{file.name}" not in files:
            file.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    write_all()
