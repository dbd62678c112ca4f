"""`serve --processes`: pipelines spread over processes, of which any may be killed: nothing lost, nothing twice.

Invariants C1 to C4 of `conduit_py/child/supervisor.py`, with several pipelines in a process.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import generator, log
from conduit_server import Running, Server
from process_tree import processes

from conduit_py import Destination, Pipeline, Recovery, Source, processor
from conduit_py.child.pool import ProcessPool
from conduit_py.lifecycle.fleet import Fleet, Member
from conduit_py.status import Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Progress

FILE = """
from pathlib import Path

from conduit_connectors import file, generator, memory

from conduit_py import DeadLetters, Destination, Pipeline, Source, processor


@processor
def times(record):
    if record.payload["id"] == 7 and not Path("mended").exists():
        raise ValueError("not 7")
    record.payload["times"] = record.payload["id"] * {factor}
    return record


def pipeline(id):
    return Pipeline(
        id,
        sources=[Source("made", generator.Source(rate=50, fields={{"id": "index"}}))],
        processors=[times],
        destinations=[Destination("kept", file.Destination(path=f"{{id}}.jsonl", format="json"))],
        dead_letters=DeadLetters("journal"),
        delivery="exactly_once",
    )


a, b, c, d = map(pipeline, "abcd")
listed = Pipeline(
    "listed",
    sources=[Source("made", generator.Source(rate=10))],
    destinations=[Destination("list", memory.Destination(into=[]))],
)
"""
IDS = "abcd"
SECONDS = 300.0


class Site:
    """A server with two processes for the pipelines a, b, c and d, and `listed`, which stays in its own."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        self.write(2)
        self.running: Running
        self.start()

    def start(self) -> None:
        self.running = self.server.start("--watch", "--processes", "2")

    def write(self, factor: int) -> None:
        self.server.write("all.py", FILE.format(factor=factor))

    def kept(self, id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.server.folder / f"{id}.jsonl").read_text().splitlines()]

    def children(self) -> list[int]:
        """The processes that share the pipelines, in the order of their start."""
        parent = self.running.process.pid
        found = [each.pid for each in processes(parent) if each.parent == parent and "child.program" in each.command]
        return sorted(found)

    def move(self, ids: str = IDS) -> None:
        """Wait until more has been acked of each than there was."""
        for id in ids:
            goal = (self.running.pipeline(id)["progress"] or {"acked": 0})["acked"] + 20
            self.running.until(id, lambda shown, goal=goal: shown["progress"]["acked"] > goal)  # type: ignore[misc]

    def pid_of(self, process: int) -> int:
        """The last pid of a process, as the log says it."""
        lines = [line for line in self.server.log().splitlines() if f"process {process} is started, with pid" in line]
        return int(lines[-1].split()[-1])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait(wanted: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("served"))
    yield site
    site.server.close()


def test_they_are_spread_evenly_and_seen_in_one_place(site: Site) -> None:
    site.move()
    logged, metrics = site.server.log(), site.running.http.get("/metrics").text

    for id, place in {"a": 1, "b": 2, "c": 1, "d": 2}.items():
        assert f"pipeline {id} runs in process {place} of 2" in logged
    assert "pipeline listed runs in the server's own process, because list works with what is in it" in logged
    assert len(site.children()) == 2
    assert all(f'pipeline_name="{id}"' in metrics for id in (*IDS, "listed"))
    for number in (1, 2):
        for name, least in (("cpu_seconds_total", 0.01), ("resident_memory_bytes", 1e6), ("pipelines", 2)):
            line = rf'^conduit_process_{name}\{{process="{number}"\}} (\S+)$'
            assert float(re.search(line, metrics, re.MULTILINE)[1]) >= least  # type: ignore[index]
    shown = {each["id"]: each["process"] for each in site.running.http.get("/api/v1/pipelines").json()["pipelines"]}
    assert shown == {"a": 1, "b": 2, "c": 1, "d": 2, "listed": None}


def test_a_tap_sees_the_records_in_another_process(site: Site) -> None:
    address = "/api/v1/pipelines/a/nodes/times/tap"
    with site.running.http.stream("GET", address, params={"limit": 3, "rate": 100}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    samples = [event for event in events if "outcome" in event]

    assert [event["outcome"] for event in samples] == ["changed"] * 3
    for event in samples:
        (after,) = event["after"]
        before = event["before"]["payload"]["after"]
        assert after["payload"]["after"] == {**before, "times": 2 * before["id"]}
    sequences = [event["message"]["sequence"] for event in samples]
    assert sequences == list(range(sequences[0], sequences[0] + 3))


def test_a_processor_is_exchanged_while_its_pipeline_runs(site: Site) -> None:
    children = site.children()
    site.write(3)
    wait(lambda: all(site.kept(id)[-1]["times"] == 3 * site.kept(id)[-1]["id"] for id in IDS))

    assert site.children() == children
    assert "pipeline a: continues with times as it is in the file now" in site.server.log()


def test_a_killed_process_takes_down_its_share_alone(site: Site) -> None:
    killed, other = site.pid_of(1), site.pid_of(2)
    os.kill(killed, signal.SIGKILL)
    for id in "ac":
        site.running.until(id, lambda shown: shown["progress"]["recoveries"] == 1 and shown["status"] == "running")
    site.move()

    assert gone(killed)
    assert site.pid_of(1) != killed
    assert site.pid_of(2) == other
    assert [site.running.pipeline(id)["progress"]["recoveries"] for id in "bd"] == [0, 0]
    assert site.running.pipeline("a")["error"]["code"] == "process.lost"
    assert "was ended by SIGKILL; its 2 pipelines go on in another one in" in site.server.log()


def test_a_dead_letter_is_replayed_where_its_pipeline_runs(site: Site) -> None:
    (site.server.folder / "mended").touch()
    for id in IDS:
        found = site.running.http.get("/api/v1/dead-letters", params={"pipeline": id}).json()["letters"]
        assert len(found) == 1
        assert site.running.http.post("/api/v1/dead-letters/replay", json={"filter": {"pipeline": id}}).is_success
    wait(lambda: all(7 in [each["id"] for each in site.kept(id)] for id in IDS))


def test_a_user_stops_one_and_its_neighbour_goes_on(site: Site) -> None:
    assert site.running.http.post("/api/v1/pipelines/a/stop").status_code == 202
    stopped = site.running.until("a", lambda shown: shown["status"] == "stopped")
    assert stopped["stopped_by"] == "user"
    site.move("bcd")
    assert site.running.http.post("/api/v1/pipelines/a/start").status_code == 202
    site.move("a")


def test_no_process_outlives_the_server_and_the_next_one_goes_on(site: Site) -> None:
    children = site.children()
    site.running.process.kill()
    site.running.wait()
    wait(lambda: all(map(gone, children)))
    site.start()
    site.move()
    children = site.children()
    site.running.signal(signal.SIGTERM)

    assert site.running.wait() == 0
    assert all(map(gone, children))
    for id in IDS:
        ids = [each["id"] for each in site.kept(id)]
        assert sorted(ids) == list(range(len(ids))), "exactly once, with the one that was refused and replayed"


async def until(member: Member, wanted: Callable[[Progress], object]) -> None:
    with trio.fail_after(SECONDS):
        while (progress := member.progress()) is None or not wanted(progress):  # noqa: ASYNC110 - a process changes it
            await trio.sleep(0.02)


async def test_a_process_that_dies_again_and_again_degrades_no_pipeline() -> None:
    @processor
    def exits(record: Any) -> Any:
        print("cannot go on", file=sys.stderr, flush=True)
        os._exit(3)

    source = Source("made", generator.Source(rate=50, fields={"id": "index"}))
    to = Destination("to", log.Destination(level="debug"))
    never = Recovery(retries=0, delay_seconds=0.01)
    bad = Pipeline("bad", sources=[source], processors=[exits], destinations=[to])
    good = Pipeline("good", sources=[source], destinations=[to], recovery=never)
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        pool = ProcessPool(1, nursery, restarts=Recovery(delay_seconds=0.01, delay_max_seconds=0.05))
        fleet = Fleet(store, nursery, recovery=never, engine=pool.supervise)
        for each in (bad, good):
            await fleet.add(each)
        await fleet.boot()
        await until(fleet["good"], lambda progress: progress.recoveries >= 2)
        status, error = fleet["good"].state.status, fleet["good"].state.error
        fleet.stop("bad", by=Stopper.USER)
        await fleet["bad"].ended.wait()
        await until(fleet["good"], lambda progress: progress.acked)
        await fleet.shutdown(SECONDS)
        nursery.cancel_scope.cancel()

    assert status in (Status.RUNNING, Status.RECOVERING)
    assert error is not None
    assert error.message == (
        "process 1 of the server, in which good ran with others, ended by itself with exit code 3; "
        "its last line was: cannot go on"
    )
    assert (await store.state("good")).stopped_by is Stopper.SYSTEM


def test_places_are_balanced_and_the_same_after_a_restart() -> None:
    async def places() -> list[int | None]:
        async with trio.open_nursery() as nursery:
            pool = ProcessPool(3, nursery)
            return [pool.place(f"p{number}").number for number in (*range(7), 0, 5)]

    assert trio.run(places) == trio.run(places) == [1, 2, 3, 1, 2, 3, 1, 1, 3]
