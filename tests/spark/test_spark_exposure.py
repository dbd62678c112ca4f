"""What others on the machine or its network can see of a pipeline on Spark: no open port, and no secret.

Invariant: a secret of a connector, a processor or a setting of Spark is on no command line and in no log. No file that
another user can read has it; and no file with one is left behind.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from process_tree import listening, processes
from warm_python import WarmPython

from conduit_py.spark.session.java import exposures, safe_conf, site_conf

CANARY = "canary-7c1e"
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
FILE = """
import json, os, time
from pathlib import Path
from conduit_connectors import file, objects, postgres, spark
from conduit_py import Destination, Pipeline, Source, Spark, processor

GIVEN = json.loads(Path(os.environ["GIVEN"]).read_text())
HERE, LOOKED, KEY = Path("here").absolute(), Path("looked").absolute(), GIVEN["key"]

@processor
def score(record):
    # Stands still on an executor, while all its secrets are in use, until the test has looked around.
    HERE.with_suffix(".part").write_text(str(os.getpid()))
    HERE.with_suffix(".part").rename(HERE)
    while not LOOKED.exists():
        time.sleep(0.05)
    record.payload["n"] += len(KEY)
    return record

def tables():
    if GIVEN["jdbc"]:
        return spark.Jdbc(url=GIVEN["jdbc"], table="numbers", options=GIVEN["options"], columns="n INT")
    return postgres.Destination(url=GIVEN["url"], table="numbers")

pipeline = Pipeline(
    "guarded",
    sources=[Source("in", file.Source(path=Path("in.jsonl").absolute(), format="json"))],
    processors=[score],
    # The keys of a store go to executors that write, whatever the store is: M8.
    destinations=[
        Destination("out", tables()),
        Destination("lake", objects.Destination(url=str(Path("lake").absolute()), s3_secret_key=KEY)),
    ],
    engine=Spark(master=GIVEN["master"], conf=GIVEN["conf"], start_seconds=300),
)
"""


class Seen(NamedTuple):
    """What was seen of a run."""

    commands: list[str]
    """Of all processes of the machine, those with the secret in them."""
    listeners: set[str]
    conf: dict[str, str]
    """As it stands in the event log."""
    readable: list[Path]
    """Files with the secret that others could read while it ran."""
    left: list[Path]
    """Files with the secret after its end."""


@pytest.fixture
def table(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (n INT NOT NULL)")
    return postgres


def watch_run(folder: Path, given: dict[str, Any], *logs: Path) -> Seen:
    """Run the pipeline, and look around while a record is on an executor and when all is over."""
    for name in ("tmp", "local", "events"):
        (folder / name).mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.local.dir": str(folder / "local"),
        "spark.hadoop.fs.azure.account.key.store": f"{CANARY}-conf",
    }
    given = {"key": f"{CANARY}-key", "jdbc": None, **given, "conf": conf | given["conf"]}
    (folder / "given.json").touch(mode=0o600)
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "guarded.py").write_text(FILE)
    (folder / "in.jsonl").write_text('{"n": 1}\n')
    environment = os.environ | {"GIVEN": str(folder / "given.json"), "TMPDIR": str(folder / "tmp")}
    with (folder / "output.log").open("wb") as output:
        command = [sys.executable, "-m", "conduit_py.cli.main", "run", "guarded.py", "--debug"]
        run = WarmPython(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        pids = wait_for_executor(run, folder)
        commands = [each.command for each in processes(1) if CANARY in each.command]
        listeners = {address for pid in pids for address in listening(pid)}
        readable = [path for path in with_secret(folder, *logs, *local_folders(pids)) if is_readable(path)]
        (folder / "looked").touch()
        assert run.wait(600) == 0, (folder / "output.log").read_text()
    finally:
        run.kill()
        run.wait()
    (folder / "given.json").unlink()
    return Seen(commands, listeners, conf_of(folder / "events"), readable, list(with_secret(folder, *logs)))


def wait_for_executor(run: "subprocess.Popen[Any]", folder: Path) -> set[int]:
    """Wait until a record is on an executor, and return the processes of the driver and of that executor."""
    while not (folder / "here").exists():
        assert run.poll() is None, (folder / "output.log").read_text()
        time.sleep(0.05)
    worker = int((folder / "here").read_text())
    parents = {each.pid: each.parent for each in processes(1)}
    # The Python worker was forked by a daemon, which Java started.
    java = parents[parents[worker]]
    return {each.pid for each in processes(run.pid, java)}


def local_folders(pids: set[int]) -> set[Path]:
    """The folders that executors of a cluster keep files in, from their environment."""
    found = set()
    for pid in pids:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # It has ended meanwhile.
        for variable in variables:
            name, _, value = variable.partition("=")
            if name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS"):
                found |= {Path(each) for each in value.replace(",", ":").split(":")}
    return found


def with_secret(*folders: Path) -> Iterator[Path]:
    # Not by rglob, which fails where Spark deletes a folder meanwhile.
    found = {Path(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names}
    for path in found:
        try:
            if path.name != "given.json" and path.is_file() and CANARY.encode() in path.read_bytes():
                yield path
        except OSError:
            continue  # It was deleted meanwhile.


def is_readable(path: Path) -> bool:
    """Whether another user could read it, if the folders of the tests were open."""
    inside = [path, *path.parents]
    try:
        return path.stat().st_mode & 0o044 != 0 and all(each.stat().st_mode & 0o011 for each in inside[1:3])
    except FileNotFoundError:
        return False  # It was deleted meanwhile.


def conf_of(events: Path) -> dict[str, str]:
    lines = [line for path in events.rglob("*") if path.is_file() for line in path.read_text().splitlines()]
    logged = [json.loads(line) for line in lines if '"SparkListenerEnvironmentUpdate"' in line]
    conf: dict[str, str] = logged[0]["Spark Properties"]
    return conf


def assert_nothing_is_seen(seen: Seen) -> None:
    assert seen.commands == []
    assert seen.readable == []
    assert seen.left == []
    assert seen.listeners
    assert seen.listeners <= LOOPBACK
    assert seen.conf["spark.authenticate"] == "true"


def with_password(url: str) -> str:
    at = urlsplit(url)
    return at._replace(netloc=f"{at.username}:{CANARY}-url@{at.hostname}:{at.port}").geturl()


def test_a_local_spark_shows_nothing(tmp_path: Path, table: str) -> None:
    # The page of Spark, which the operator turned on, is on loopback as everything else.
    conf = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    seen = watch_run(tmp_path, {"master": "local[2]", "url": with_password(table), "conf": conf})

    assert_nothing_is_seen(seen)
    assert len(list((tmp_path / "lake").glob("part-*"))) == 1
    assert "redacted" in seen.conf["spark.authenticate.secret"]
    assert "redacted" in seen.conf["spark.hadoop.fs.azure.account.key.store"]


def test_a_driver_of_a_cluster_shows_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, table: str, spark_options: dict[str, Any]
) -> None:
    at = urlsplit(table)
    given = {
        "master": spark_options["master"],
        "conf": {name: value for name, value in spark_options["conf"].items() if not name.startswith("spark.driver")}
        | {"spark.network.crypto.enabled": "true"},
        "jdbc": f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}?password={CANARY}-url",
        "options": {"user": str(at.username), "password": f"{CANARY}-password"},
    }
    seen = watch_run(tmp_path, given, *(path for path in cluster_folder(tmp_path_factory).glob("worker-*")))

    assert_nothing_is_seen(seen)
    assert seen.conf["spark.network.crypto.enabled"] == "true"


def cluster_folder(factory: pytest.TempPathFactory) -> Path:
    own = factory.getbasetemp()
    return next(each for each in (own / "spark-cluster", own.parent / "spark-cluster") if each.exists())


@pytest.mark.parametrize(
    ("master", "name", "value", "warning"),
    [
        ("local[2]", "spark.authenticate", "false", "all who reach a port of Spark on local[2] can run code there"),
        ("local[2]", "spark.driver.bindAddress", "0.0.0.0", "leave out spark.driver.bindAddress=0.0.0.0"),
        ("spark://host:7077", "spark.x", "1", "set spark.authenticate to true, and spark.authenticate.secret to that"),
        ("yarn", "spark.network.crypto.enabled", "false", "go through the network in plain text"),
        ("local", "spark.ui.enabled", "true", "the page of Spark asks for no password"),
        ("local", "spark.driver.extraJavaOptions", "-Dx -Dkey.password=k", "can read spark.driver.extraJavaOptions"),
    ],
)
def test_settings_that_open_spark_to_others_are_kept_and_reported(
    master: str, name: str, value: str, warning: str
) -> None:
    assert name not in safe_conf(master, {name: value})
    [warned] = exposures(master, {name: value})
    assert warning in warned


@pytest.mark.parametrize("master", ["local[*]", "spark://host:7077", "yarn", "k8s://https://host"])
def test_the_settings_of_the_site_count(master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("#\nspark.authenticate true\nspark.authenticate.secret=of-ours\n")

    assert site_conf() == {"spark.authenticate": "true", "spark.authenticate.secret": "of-ours"}
    assert exposures(master, {}) == []
    assert "spark.authenticate.secret" not in safe_conf(master, site_conf())


def test_a_shuffle_service_that_may_know_no_secret_is_left_alone() -> None:
    conf = safe_conf("yarn", {"spark.shuffle.service.enabled": "true"})

    assert "spark.authenticate" not in conf
    assert "spark.network.crypto.enabled" not in conf


def test_traffic_that_leaves_the_machine_is_encrypted() -> None:
    given = {"spark.authenticate": "true"}

    assert safe_conf("spark://host:7077", given)["spark.network.crypto.enabled"] == "true"
    assert safe_conf("yarn", {})["spark.network.crypto.enabled"] == "true"
    assert "spark.network.crypto.enabled" not in safe_conf("spark://127.0.0.1:7077", given)


def test_a_driver_of_a_master_elsewhere_is_reachable() -> None:
    assert "spark.driver.host" not in safe_conf("spark://127.0.0.1:7077,host:7077", {})
    assert safe_conf("spark://127.0.0.1:7077,[::1]:7078", {})["spark.driver.host"] == "127.0.0.1"
