"""A state larger than its cache in the process of a pipeline: the server keeps it, and the process is killed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from conduit_server import Server
from process_tree import processes

KEYS = 300
KILLS = 3
FILE = f"""
from conduit_connectors import file, generator
from conduit_py import Pipeline, Processor, TransactionLimits, processor


def key_of(record):
    return f"key {{record.payload['id'] % {KEYS}}}"


@processor(state=True)
def count(record, state):
    record.payload["count"] = state.get(key_of(record), 0) + 1
    state.put(key_of(record), record.payload["count"])
    return record


@processor(state=True, state_keys=lambda record: [key_of(record)])
async def count_async(record, state):
    return count(record, state)


def pipeline(id, counting):
    return Pipeline(
        id,
        sources={{"made": generator.Source(rate=400, fields={{"id": "index"}})}},
        processors=[Processor("count", counting, state_cache_bytes=1)],
        destinations={{"kept": file.Destination(path=f"{{id}}.jsonl", format="json")}},
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=50),
    )


sync, awaiting = pipeline("sync", count), pipeline("awaiting", count_async)
"""


@pytest.mark.parametrize("place", ["a folder", "PostgreSQL"])
def test_counts_are_right_when_the_process_and_the_server_are_killed(
    tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    server = Server(tmp_path)
    server.write("all.py", FILE)
    state = ["--state", str(request.getfixturevalue("postgres"))] if place == "PostgreSQL" else []
    ids = ("sync", "awaiting")
    running = server.start("--processes", "1", *state)
    for kill in range(KILLS + 1):
        for id in ids:
            # Each key was counted at least once more, so all of them were read again.
            goal = len(kept(tmp_path, id)) + KEYS + 100
            deadline = time.monotonic() + 300
            while len(kept(tmp_path, id)) < goal:
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.05)
        if kill < KILLS - 1:
            [child] = [each.pid for each in processes(running.process.pid) if "child.program" in each.command]
            os.kill(child, signal.SIGKILL)
        elif kill == KILLS - 1:
            running.process.kill()
            running.wait()
            running = server.start("--processes", "1", *state)
    metrics = running.http.get("/metrics").text
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    server.close()

    for id in ids:
        assert gauge(metrics, "conduit_state_keys", id) == KEYS
        # What a transaction and the one before it have changed.
        assert gauge(metrics, "conduit_state_cached_keys", id) < KEYS
        rows = kept(tmp_path, id)
        assert [row["id"] for row in rows] == list(range(len(rows)))
        assert [row["count"] for row in rows] == [1 + row["id"] // KEYS for row in rows]


def kept(folder: Path, id: str) -> list[dict[str, int]]:
    path = folder / f"{id}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gauge(metrics: str, name: str, pipeline: str) -> float:
    [line] = [each for each in metrics.splitlines() if each.startswith(f"{name}{{") and f'"{pipeline}"' in each]
    return float(line.split()[-1])
