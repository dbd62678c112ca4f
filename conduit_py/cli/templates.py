"""The commands that write files to go on from: `init`, `new`, `quickstart` and `dashboards export`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from conduit_py.cli.errors import print_error_as_json
from conduit_py.cli.output import ExitCode, put, put_json, put_lines
from conduit_py.cli.run import run_file
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import EnvironmentUnfit, Problem

ORDERS = """\
{"id": 1, "item": "lamp", "amount": 19.9}
{"id": 2, "item": "chair", "amount": 45.0}
{"id": 3, "item": "sticker", "amount": 0.05}
{"id": 4, "item": "table"}
"""

PYTHON = '''\
"""Orders from a file, in cents, the smallest left out; what has no amount goes to a file of its own."""

from conduit_connectors import file
from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor


@processor
def cents(record: Record) -> Record | None:
    """A record goes on, None filters it, a list splits it, an exception refuses it."""
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record if record.payload["cents"] >= 10 else None


orders = Pipeline(
    "orders",
    sources=[Source("shop", file.Source(path="data/orders.jsonl", format="json"))],
    processors=[cents],
    destinations=[Destination("lake", file.Destination(path="data/lake.jsonl", format="json"))],
    dead_letters=DeadLetters(file.Destination(path="data/dead.jsonl", format="json")),
)
'''

PYTHON_TEST = '''\
"""The pipeline as it is, with records given by the test and ends in memory: no files, no waiting."""

import sys
from pathlib import Path

from conduit_py.testing import rehearse, simulate

sys.path.append(str(Path(__file__).parent.parent / "pipelines"))

from orders import orders


def test_amounts_become_cents_and_orders_without_one_are_dead_letters():
    given = [{"amount": 19.9}, {"amount": 0.05}, {"item": "table"}]
    outcome = simulate(rehearse, orders, {"shop": given})

    assert outcome.payloads("lake") == [{"amount": 19.9, "cents": 1990}]
    assert [letter.payload["error"] for letter in outcome.dead_letters] == ["KeyError: 'amount'"]
'''

YAML = """\
# Orders from a file, with a field added; what has no amount is left out.
version: "2.2"
pipelines:
  - id: orders
    status: running
    description: orders on their way to the lake
    connectors:
      - id: shop
        type: source
        plugin: file
        settings:
          path: data/orders.jsonl
          format: json
          tail: "false" # Conduit's file source waits for more at the end of the file
      - id: lake
        type: destination
        plugin: file
        settings:
          path: data/lake.jsonl
          format: json
    processors:
      - id: priced
        plugin: filter
        condition: '{{ not (hasKey .Payload.After "amount") }}'
      - id: checked
        plugin: field.set
        settings:
          field: .Payload.After.checked
          value: "yes"
"""

YAML_TEST = '''\
"""The pipeline as it is, run by the command in a folder of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent


def test_orders_with_an_amount_reach_the_lake(tmp_path):
    (tmp_path / "data").mkdir()
    shutil.copy(PROJECT / "data" / "orders.jsonl", tmp_path / "data")
    command = [sys.executable, "-P", "-m", "conduit_py.cli.main", "run", str(PROJECT / "pipelines" / "orders.yaml")]
    subprocess.run(command, cwd=tmp_path, check=True)

    lines = (tmp_path / "data" / "lake.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2, 3]
    assert {json.loads(line)["checked"] for line in lines} == {"yes"}
'''

README = """\
# Orders

A pipeline of conduit-py: `pipelines/{file}` takes orders from `data/orders.jsonl` to `data/lake.jsonl`.

    conduit-py check pipelines/{file}        every problem at once
    conduit-py run pipelines/{file}          runs it; a second run goes on where the first ended
    conduit-py serve --pipelines pipelines --watch    runs everything in the folder, and follows your edits
    pip install 'conduit-dataflow[testing]' && pytest       tests it
    conduit-py doctor                        says what is wrong with this machine, if anything

Positions are in `.conduit/state`, which `run` and `serve` share. `run --fresh` forgets them: everything is read and
delivered again, so remove the old output first.
"""

IGNORED = """\
.conduit/
.venv/
__pycache__/
.pytest_cache/
data/lake.jsonl
data/dead.jsonl
tokens
"""


TAP = '''\
"""Rows of @@tap@@ in a database, a table for each of its streams. `conduit-py check --connect` asks the tap."""

from conduit_connectors import singer, sqlite
from conduit_py import DeadLetters, Pipeline

@@name@@ = Pipeline(
    "@@tap@@",
    sources={
        "tap": singer.Source(
            # The tap runs in an environment of its own, which uv makes. Without uv: the path of its command.
            command=["uvx", "--from", "@@tap@@", "@@tap@@"],
            # What the page of the tap says. Its passwords and tokens belong into secret_config.
            config={},
            secret_config={},
            # Patterns of streams. Some taps need metadata={"*": {"replication-method": "FULL_TABLE"}} too.
            select=["*"],
        )
    },
    # A row with the key of an earlier one replaces it.
    destinations={"rows": sqlite.Destination(path="@@tap@@.db", mode="upsert")},
    dead_letters=DeadLetters.keep(),
    delivery="exactly_once",
)
'''


def init(folder: Path, *, yaml: bool, as_json: bool) -> ExitCode:
    """Write the project. A file that exists already keeps everything from being written."""
    name = "orders.yaml" if yaml else "orders.py"
    files = {
        f"pipelines/{name}": YAML if yaml else PYTHON,
        "tests/test_orders.py": YAML_TEST if yaml else PYTHON_TEST,
        "data/orders.jsonl": ORDERS,
        "README.md": README.format(file=name),
        ".gitignore": IGNORED,
    }
    with print_error_as_json(as_json=as_json):
        _refuse_to_overwrite([folder / file for file in files])
        for file, text in files.items():
            _write_project_file(folder / file, text)
    _print_files(folder, list(files), name, as_json=as_json)
    return ExitCode.OK


_SCAFFOLD = {
    "connector": {"client.py": "{source}/client.py", "source.py": "{source}/source.py",
        "destination.py": "{source}/destination.py", "test_connector.py": "tests/test_connector.py"},
    "processor": {"processor.py": "{source}/processor.py", "test_processor.py": "tests/test_processor.py"},
}  # fmt: skip
_SCAFFOLD_ALWAYS = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "ci.yml": ".github/workflows/test.yml",
    "__init__.py": "{source}/__init__.py",
}


def new_plugin(
    kind: Literal["connector", "processor", "singer"], name: str, folder: Path | None, *, as_json: bool
) -> ExitCode:
    """Write a package with a plugin, whose tests pass. A file that exists already keeps all from being written."""
    if kind == "singer":
        return _new_tap(name, folder or Path("pipelines"), as_json=as_json)
    package = f"conduit_{name.replace('-', '_')}"
    folder = folder or Path(f"conduit-{name}")
    texts = {}
    for template, place in (_SCAFFOLD_ALWAYS | _SCAFFOLD[kind]).items():
        text = (Path(__file__).parent / "scaffold" / kind / f"{template}.txt").read_text(encoding="utf-8")
        text = text.replace("@@name@@", name).replace("@@package@@", package)
        texts[place.format(source=f"src/{package}")] = text
    texts[f"src/{package}/py.typed"] = ""
    with print_error_as_json(as_json=as_json):
        _refuse_to_overwrite([folder / file for file in texts])
        for file, text in texts.items():
            _write_project_file(folder / file, text)
    if as_json:
        put_json({"folder": str(folder), "files": list(texts)})
        return ExitCode.OK
    for file in texts:
        put(f"wrote {folder / file}")
    put(f"next: cd {folder} && pip install -e '.[test]' && pytest")
    return ExitCode.OK


def _new_tap(tap: str, folder: Path, *, as_json: bool) -> ExitCode:
    """Write a pipeline that reads a Singer tap."""
    file = folder / f"{tap.replace('-', '_')}.py"
    with print_error_as_json(as_json=as_json):
        _refuse_to_overwrite([file])
        _write_project_file(file, TAP.replace("@@tap@@", tap).replace("@@name@@", tap.replace("-", "_")))
    if as_json:
        put_json({"folder": str(folder), "files": [file.name]})
        return ExitCode.OK
    put(f"wrote {file}")
    checked = f"conduit-py check --connect --timeout 120 {file}"
    put(f"next: write the config of the tap there, then {checked} && conduit-py run {file}")
    return ExitCode.OK


def _refuse_to_overwrite(files: list[Path]) -> None:
    problems = [
        Problem("", "exists already, and is left as it is", "choose another folder", str(file))
        for file in files
        if file.exists() or file.is_symlink()
    ]
    if problems:
        raise FileInvalid(files[0].parent, problems)


def _write_project_file(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise EnvironmentUnfit(f"{file} cannot be written: {error.strerror}") from error


def _print_files(folder: Path, files: list[str], name: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"folder": str(folder), "files": files})
        return
    for file in files:
        put(f"wrote {folder / file}")
    enter = "" if folder == Path() else f"cd {folder} && "
    put(f"next: {enter}conduit-py run pipelines/{name}")


RECORDS = 20
PIPELINE = '''\
"""A first pipeline: made-up orders, the smallest left out, printed as JSON lines."""

from conduit_connectors import generator, stdio
from conduit_py import Destination, Pipeline, Record, Source, processor


@processor
def cents(record: Record) -> Record | None:
    """A record goes on, None filters it, a list splits it, an exception refuses it."""
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record if record.payload["cents"] >= 10 else None


shop = generator.Source(count=20, rate=10, fields={"id": "index", "item": "string", "amount": "float"})

orders = Pipeline(
    "orders",
    sources=[Source("shop", shop)],
    processors=[cents],
    destinations=[Destination("screen", stdio.Destination(format="json"))],
)
'''


def quickstart(*, records: int = RECORDS, write: Path | None = None, debug: bool = False) -> ExitCode:
    """Run the first pipeline and keep nothing of it, or write it to a file that does not exist yet."""
    text = PIPELINE.replace(f"count={RECORDS}", f"count={records}")
    if write is not None:
        _write(write, text)
        put(f"wrote {write}; next: conduit-py run {write}")
        return ExitCode.OK
    put(f"{records} made-up orders, 10 a second → in cents, the smallest left out → your screen (Ctrl-C stops)")
    with TemporaryDirectory(prefix="conduit-quickstart-") as folder:
        file = Path(folder, "orders.py")
        file.write_text(text)
        code = run_file(file, state=Path(folder, "state"), debug=debug)
    put_lines(
        "next: conduit-py quickstart --write first.py   the pipeline you just saw, to change\n"
        "      conduit-py check first.py                every problem at once\n"
        "      conduit-py graph first.py                draws it\n"
        "      conduit-py run first.py                  runs it; a second run goes on where the first ended"
    )
    return code


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        problem = Problem("", "exists already, and is left as it is", "choose another name", str(file))
        raise FileInvalid(file, [problem]) from None
    except OSError as error:
        raise EnvironmentUnfit(f"{file} cannot be written: {error.strerror}") from error


def write_dashboards(folder: Path, runbook: str, *, as_json: bool) -> ExitCode:
    """Write the dashboards and alerts that fit this version, and say how to use them."""
    # Imported here: a first pipeline needs no server, and should not wait for one to be imported.
    from conduit_py.telemetry.export import export

    with print_error_as_json(as_json=as_json):
        try:
            paths = export(folder, runbook)
        except OSError as error:
            raise EnvironmentUnfit(f"the dashboards cannot be written to {folder}: {error.strerror}") from error
    if as_json:
        put_json({"files": [str(path) for path in paths]})
        return ExitCode.OK
    for path in paths:
        put(str(path))
    put("Import the JSON files in Grafana; name alerts.yml under rule_files in prometheus.yml.")
    return ExitCode.OK
