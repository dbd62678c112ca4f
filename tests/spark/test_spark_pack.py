"""`conduit-py spark pack`: executors of a cluster run with the packed environment, and with nothing else of ours."""

import json
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from warm_python import COMMAND, run_warm

FILE = """
import json, sys
from pathlib import Path
import msgspec
import conduit_py
from conduit_connectors import file
from conduit_py import Destination, Pipeline, Source, Spark, processor

GIVEN = json.loads(Path("given.json").absolute().read_text()) if Path("given.json").exists() else {}

@processor
def where(record):
    import conduit_connectors, pyarrow, pyspark
    modules = (conduit_py, conduit_connectors, msgspec, pyarrow, pyspark)
    record.payload.after = {"prefix": sys.prefix, "files": [each.__file__ for each in modules]}
    return record

pipeline = Pipeline(
    "where",
    sources=[Source("in", file.Source(path=Path("in.jsonl").absolute(), format="json"))],
    processors=[where],
    destinations=[Destination("out", file.Destination(path=Path("out.jsonl").absolute(), format="json"))],
    engine=Spark(start_seconds=300, **GIVEN),
)
"""


def pack(folder: Path, *arguments: str) -> tuple[int, str]:
    ran = run_warm([COMMAND, "spark", "pack", *arguments], cwd=folder, timeout=600)
    return ran.returncode, ran.stdout + ran.stderr


def test_executors_run_with_the_packed_environment_only(tmp_path: Path, spark_options: dict[str, Any]) -> None:
    code, said = pack(tmp_path, "msgspec", "--out", "environment.tgz")
    assert code == 0, said
    archive = tmp_path / "environment.tgz"
    assert_complete(archive)
    assert f'"spark.archives": "{archive}#environment"' in said
    packed = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
    given = {"master": spark_options["master"], "conf": spark_options["conf"] | packed | {"spark.cores.max": "1"}}
    (tmp_path / "given.json").write_text(json.dumps(given))
    (tmp_path / "where.py").write_text(FILE)
    (tmp_path / "in.jsonl").write_text("{}\n")

    ran = run_warm([COMMAND, "run", "where.py"], cwd=tmp_path, timeout=600)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    [seen] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert seen["prefix"] != sys.prefix
    [packages] = {re.sub(r"(/environment/packages/).*", r"\1", each) for each in seen["files"]}
    assert packages.endswith("/environment/packages/")
    assert re.search(r"/app-[^/]+/\d+/", packages), "the folder of an executor"


def assert_complete(path: Path) -> None:
    """Plugins, their entry points and Python of Spark are there; jars, caches and what only an extra needs are not."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert archive.getmember("bin/python").mode == 0o755
    assert names[0] == "bin/python"
    assert "packages/conduit_connectors/file/source.py" in names
    assert any(name.startswith("packages/conduit_dataflow-") and name.endswith("/entry_points.txt") for name in names)
    assert "packages/pyspark/daemon.py" in names
    assert [name for name in names if name.endswith((".jar", ".pyc", ".pth")) or ".." in name] == []
    assert not any(name.startswith("packages/duckdb/") for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-thing"], "no-such-thing is not installed here"),
        (["msgspec", "--out", "environment.tar"], "environment.tar is no archive that Spark unpacks"),
        (["msgspec", "--out", "nowhere/environment.tgz"], "nowhere/environment.tgz cannot be written"),
    ],
)
def test_what_cannot_be_packed_is_reported(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, said = pack(tmp_path, *arguments)

    assert code == 3
    assert message in " ".join(said.split())
    assert list(tmp_path.iterdir()) == []
