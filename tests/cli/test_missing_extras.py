"""A package that is not installed: `check` and `run` say what to install, for pipelines in Python and in YAML."""

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from warm_python import run_warm

if TYPE_CHECKING:
    from tests.cli.conftest import Command

# None in sys.modules makes an import fail as if the package were not installed. Nothing may have imported it before.
HIDING = """
import sys
hidden = sys.argv.pop(1)
assert hidden not in sys.modules and not any(name.startswith("conduit_connectors") for name in sys.modules)
sys.modules[hidden] = None
from conduit_py.cli.main import main
sys.argv[0] = "conduit-py"
sys.exit(main())
"""
CONNECTORS = [
    ("boto3", "sqs", "sqs.Source(url='https://sqs.eu-west-1.amazonaws.com/1/q')"),
    ("redis", "redis", "redis_streams.Source(url='redis://here', stream='s')"),
    ("nats", "nats", "nats.Source(url='nats://here', stream='s', subject='t')"),
    ("pyarrow", "objects", "sqlite_queue.Source(path='q.db', messages='uri', allowed_prefixes=['/data'])"),
    ("psycopg", "postgres", "postgres.Destination(url='postgresql://here/db', table='t')"),
    ("confluent_kafka", "kafka", "kafka.Source(servers='here:9092', topics=['t'])"),
    ("pymysql", "mysql", "mysql.Destination(url='mysql://here/db', table='t')"),
    ("deltalake", "delta", "delta.Destination(path='table')"),
    ("pyarrow", "delta", "delta.Destination(path='table')"),
    ("pyarrow", "parquet", "parquet.Destination(path='folder')"),
    ("duckdb", "duckdb", "duckdb.Destination(path='f', table='t')"),
    ("pyarrow", "duckdb", "duckdb.Destination(path='f', table='t')"),
    ("pyiceberg", "iceberg", "iceberg.Destination(table='a.b')"),
    ("sqlalchemy", "sqlalchemy", "sqlalchemy.Destination(url='sqlite:///f', table='t')"),
    ("pyspark", "spark", "spark.Source(query='SELECT 1', stage='stage')"),
]
PIPELINE = """\
from conduit_py import Pipeline
from conduit_connectors import memory, {module}
made = {made}
sources = {{"in": made}} if hasattr(made, "read") else {{"in": memory.Source(records=[])}}
destinations = {{"out": made}} if hasattr(made, "write") else {{"out": memory.Destination(into=[])}}
pipeline = Pipeline("p", sources=sources, destinations=destinations)
"""
YAML = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: "{source}", settings: {{{settings}}}}}
      - {{id: out, type: destination, plugin: "{destination}", settings: {{url: postgresql://here/db, table: t}}}}
"""


def without(package: str, command: "Command", *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `conduit-py` where the package is not installed."""
    line = [sys.executable, "-c", HIDING, package, *arguments]
    return run_warm(line, bare=True, cwd=command.folder, env=os.environ | {"COLUMNS": "200"})


@pytest.mark.parametrize(("package", "extra", "made"), CONNECTORS, ids=[f"{each[0]}-{each[1]}" for each in CONNECTORS])
def test_check_says_what_to_install(command: "Command", package: str, extra: str, made: str) -> None:
    command.write(PIPELINE.format(module=made.partition(".")[0], made=made))
    done = without(package, command, "check", "orders.py")

    assert done.returncode in (2, 3)
    assert f"pip install 'conduit-dataflow[{extra}]'" in done.stderr
    assert package in done.stderr


@pytest.mark.parametrize(
    ("package", "extra", "plugins"),
    [
        (
            "redis",
            "redis",
            {"source": "redis.streams", "settings": "url: redis://here, stream: s", "destination": "log"},
        ),
        ("psycopg", "postgres", {"source": "generator", "settings": "", "destination": "postgres"}),
    ],
    ids=["redis", "postgres"],
)
def test_a_pipeline_in_yaml_says_what_to_install(
    command: "Command", package: str, extra: str, plugins: dict[str, str]
) -> None:
    command.write(YAML.format(**plugins), "orders.yaml")
    done = without(package, command, "run", "orders.yaml")

    assert done.returncode in (2, 3)
    assert f"pip install 'conduit-dataflow[{extra}]'" in done.stderr
    assert package in done.stderr


def test_a_plugin_that_is_broken_hides_no_other(command: "Command") -> None:
    package = command.folder / "site" / "broken-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    lines = ["[conduit_py.sources]", "gone = broken:Gone", "number = broken:NUMBER"]
    (package / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (package.parent / "broken.py").write_text("NUMBER = 1\n")
    # Not a forked process: it would know the packages of the one that it is a copy of.
    program = [sys.executable, "-c", "from conduit_py.cli.main import main; main()", "plugins", "list"]
    done = subprocess.run(program, env=os.environ | {"PYTHONPATH": str(package.parent)}, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "the source plugin 'gone' cannot be loaded: AttributeError" in done.stdout
    assert "broken:NUMBER is no class" in done.stdout
    assert "One record per line of a file" in done.stdout
