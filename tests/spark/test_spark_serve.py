"""A pipeline on Spark under `serve`: seen and operated like any other, in a process of its own, with a real Java."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conduit_server import Server
from process_tree import processes
from warm_python import COMMAND, run_warm

FILE = """
from pathlib import Path

from conduit_connectors import file, generator

from conduit_py import DeadLetters, Destination, Pipeline, Source, Spark, processor


@processor
def times(record):
    record.payload["times"] = record.payload["id"] * {factor}
    return record


@processor
def judged(record):
    if record.payload["id"] == 7 and not Path("mended").exists():
        raise ValueError("not 7")
    return record


def pipeline(id, **more):
    kept, judged_ones = (file.Destination(path=f"{{id}}{{kind}}.jsonl", format="json") for kind in ("", "-judged"))
    return Pipeline(
        id,
        sources=[Source("made", generator.Source(rate=100, fields={{"id": "index"}}))],
        processors=[times],
        destinations=[Destination("kept", kept), Destination("judged", judged_ones, processors=[judged])],
        dead_letters=DeadLetters("journal"),
        delivery="exactly_once",
        **more,
    )


conf = {{"spark.driver.memory": "512m"}}
here = pipeline("here")
there = pipeline("there", engine=Spark(master="local[1]", conf=conf))
"""
SECONDS = 120.0


class Site:
    """A server with one pipeline on Spark, `there`, and one on this machine, `here`."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        self.write(2)
        self.running = self.server.start("--watch")

    def write(self, factor: int) -> None:
        self.server.write("both.py", FILE.format(factor=factor))

    def kept(self, id: str = "there") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.server.folder / f"{id}.jsonl").read_text().splitlines()]

    def moves(self) -> None:
        """Wait until the pipeline on Spark has delivered more than it had."""
        file = self.server.folder / "there.jsonl"
        before = file.stat().st_size if file.exists() else 0
        self.wait(lambda: file.exists() and file.stat().st_size > before + 1000)

    def wait(self, wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not wanted():
            assert time.monotonic() < deadline, self.server.log()
            time.sleep(0.2)

    def child(self) -> int:
        """The process of the pipeline on Spark."""
        return children(self.running.process.pid, "conduit_py.child.program")[0]

    def java(self) -> int:
        return children(self.child(), "org.apache.spark.deploy.SparkSubmit")[0]


def children(parent: int, command: str) -> list[int]:
    """The processes that a process has started with such a command."""
    return [each.pid for each in processes(parent) if each.parent == parent and command in each.command]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("served"))
    yield site
    site.server.close()


def test_it_says_that_spark_is_starting(site: Site) -> None:
    started = site.running.until("there", lambda shown: shown["progress"]["blocked_on"], SECONDS)

    assert started["status"] == "running"
    assert started["progress"]["blocked_on"].startswith("Spark, which is starting")


def test_it_is_seen_like_any_other(site: Site) -> None:
    site.moves()
    seen = site.running.until("there", lambda shown: shown["progress"]["acked"] > 50, SECONDS)
    metrics = site.running.http.get("/metrics").text
    names = {line.partition("{")[0] for line in metrics.splitlines() if 'pipeline_name="there"' in line}
    others = {line.partition("{")[0] for line in metrics.splitlines() if 'pipeline_name="here"' in line}

    assert (seen["engine"], seen["spark_master"], seen["status"]) == ("spark", "local[1]", "running")
    assert (site.running.pipeline("here")["engine"], site.running.pipeline("here")["spark_master"]) == ("trio", None)
    assert all(node["records"] > 50 for node in seen["nodes"])
    assert names == others
    described = command(site, "pipelines", "describe", "there")
    assert "exactly_once, dead letters to journal, on Spark (local[1])" in described
    assert "on Spark (local[1])" in command(site, "pipelines", "list")


def test_what_spark_cannot_offer_is_refused_with_the_reason(site: Site) -> None:
    tapped = site.running.http.get("/api/v1/pipelines/there/nodes/times/tap")

    assert tapped.status_code == 409
    assert tapped.json()["error"]["code"] == "tap.impossible"
    assert "runs on Spark, whose executors hold its records" in tapped.json()["error"]["message"]


def test_dead_letters_are_listed_shown_sent_again_and_discarded_as_any_others(site: Site) -> None:
    letters = "/api/v1/dead-letters"
    listed = [site.running.http.get(letters, params={"pipeline": id}).json()["letters"] for id in ("here", "there")]
    [[here], [there]] = listed
    shown = site.running.http.get(f"{letters}/{there['id']}").json()
    (site.server.folder / "mended").touch()
    replayed = site.running.http.post(f"{letters}/replay", json={"ids": [there["id"]]})
    discarded = site.running.http.post(f"{letters}/discard", json={"ids": [here["id"]]})
    site.wait(lambda: 7 in [each["id"] for each in site.kept("there-judged")])
    site.wait(lambda: site.running.http.get(letters).json()["total"] == 0)

    assert (there["node"], there["error"], here["error"]) == ("judged:judged", "ValueError: not 7", "ValueError: not 7")
    assert shown["record"]["payload"]["after"] == {"id": 7, "times": 14}
    assert (replayed.status_code, discarded.status_code) == (202, 200)
    assert [each["id"] for each in site.kept("there-judged")].count(7) == 1


def test_an_edit_drains_it_and_starts_it_anew(site: Site) -> None:
    site.moves()
    first = site.child()
    site.write(3)
    site.wait(lambda: site.kept()[-1]["times"] == site.kept()[-1]["id"] * 3)
    kept = site.kept()

    assert site.child() != first
    assert gone(first)
    assert [each["id"] for each in kept] == list(range(len(kept)))
    assert {each["times"] / each["id"] for each in kept[1:]} == {2, 3}


def test_a_java_that_dies_takes_no_other_pipeline_with_it(site: Site) -> None:
    site.moves()
    child, here = site.child(), len(site.kept("here"))
    os.kill(site.java(), signal.SIGKILL)
    recovering = site.running.until("there", lambda shown: shown["status"] == "recovering", SECONDS)
    site.moves()
    ids = [each["id"] for each in site.kept()]

    assert recovering["error"]["code"] in ("run.transient", "node.failed")
    assert site.child() == child
    assert ids == list(range(len(ids)))
    assert len(site.kept("here")) > here
    assert site.running.pipeline("here")["progress"]["recoveries"] == 0


def test_a_server_that_dies_takes_everything_with_it_and_the_next_one_goes_on(site: Site) -> None:
    site.moves()
    child, java = site.child(), site.java()
    site.running.signal(signal.SIGKILL)
    site.running.wait()
    site.wait(lambda: gone(child) and gone(java))
    before = len(site.kept())
    site.running = site.server.start("--watch")
    site.moves()
    ids = [each["id"] for each in site.kept()]

    assert len(ids) > before
    assert ids == list(range(len(ids)))


def test_the_end_of_the_server_drains_it(site: Site) -> None:
    site.moves()
    java = site.java()
    site.running.signal(signal.SIGTERM)
    code = site.running.wait()
    ids = [each["id"] for each in site.kept()]

    assert code == 0
    assert "pipeline there is stopped" in site.server.log()
    assert gone(java)
    assert ids == list(range(len(ids)))


def command(site: Site, *arguments: str) -> str:
    return run_warm([COMMAND, *arguments, "--url", site.running.url], check=True).stdout
