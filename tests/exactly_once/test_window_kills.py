"""Sessions of a file, counted by a real process that is killed with SIGKILL: what is shown is what the model gives.

CONDUIT_WINDOW_KILLS=40 kills it so often; by default it is killed a few times.
"""

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from killed_copies import killed_copies
from naive_windows import Event, Given, NaiveWindows

from conduit_py.testing.services import PostgresServer

KILLS = int(os.environ.get("CONDUIT_WINDOW_KILLS", "3"))
RECORDS = 3000
PIPELINE = """
from conduit_connectors import clock, file
from conduit_processors import window
from conduit_py import Pipeline, Processor, Recovery, TransactionLimits

pipeline = Pipeline(
    "sessions",
    sources={"clicks": file.Source(path="in.jsonl", format="json"), "clock": clock.Source(every_seconds=0.05)},
    processors=[
        Processor(
            "sessions",
            window.Session(
                time="t", key="k", gap_seconds=20, aggregate="all:collect(v)", clock="clock", out_of_order_seconds=5,
                allowed_lateness_seconds=10, late="pass",
            ),
            state_cache_bytes=CACHE_BYTES,
        )
    ],
    destinations={"out": file.Destination(path="out.jsonl", format="opencdc")},
    delivery="exactly_once",
    transaction=TransactionLimits(max_records=50),
    # PostgreSQL may hold the lock of a killed process for a moment longer.
    recovery=Recovery(delay_seconds=0.05),
)
"""
POINTS = ["transaction.before_commit", "transaction.after_commit", "transaction.after_apply"]


def clicks() -> list[Event]:
    chance, time, events = random.Random(7), 1000, []
    for number in range(RECORDS):
        time += chance.choice([0, 1, 1, 2, 15])
        late = chance.choice([0, 0, 0, 3, 8, 60])
        events.append(Event("clicks", time - late, chance.choice("abc"), number))
    return events


@pytest.mark.parametrize(
    ("cache_bytes", "where"),
    [(1_000_000, "folder"), (1, "folder"), (1, "postgres_server")],
    ids=["in-memory", "in-the-store", "in-postgresql"],
)
def test_sessions_are_exact_when_their_process_is_killed(
    tmp_path: Path, cache_bytes: int, where: str, request: pytest.FixtureRequest
) -> None:
    events = clicks()
    server: PostgresServer | None = None if where == "folder" else request.getfixturevalue(where)
    pipeline = PIPELINE.replace("CACHE_BYTES", str(cache_bytes))
    model = NaiveWindows(("clicks",), gap=20, slack=5, lateness=10)
    expected = [each for event in [*events, Event("clock", 0, end=True)] for each in model.process(event)]
    content = "".join(json.dumps({"t": each.time, "k": each.key, "v": each.value}) + "\n" for each in events)

    killed = 0
    for folder, report in killed_copies(
        tmp_path, pipeline, content, kills=KILLS, points=POINTS, seconds_max=60 + 20 * KILLS,
        preloaded=["conduit_processors.window", "conduit_connectors.clock"],
        state=lambda copy: "state" if server is None else server.create_database(),
    ):  # fmt: skip
        killed += report.kills.total()
        assert [given_of(json.loads(line)) for line in (folder / "out.jsonl").read_text().splitlines()] == expected

    assert killed >= KILLS
    assert {"create", "update", "delete", "late"} == {each.operation for each in expected}


def given_of(record: dict[str, object]) -> Given:
    operation, payload, key = record["operation"], record["payload"], record["key"]
    assert isinstance(payload, dict)
    if "window.late" in str(record["metadata"]):
        after = payload["after"]
        return Given("late", after["k"], after["t"], after["t"], (after["v"],))
    assert isinstance(key, dict)
    shown = payload["after"] or payload["before"]
    values = tuple(shown.get("all", ()))
    return Given(str(operation), key["k"], seconds(key["window_start"]), seconds(shown["window_end"]), values)


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp())
