"""Every query of every dashboard and alert, asked of a real Prometheus that scrapes a fleet with traffic."""

import math
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from conduit_connectors import file, generator
from conduit_processors import window

from conduit_py import DeadLetters, Destination, Pipeline, Record, Recovery, Source, processor
from conduit_py.errors import FatalError
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk import Lag, QueueCounts
from conduit_py.store.memory import MemoryStore
from conduit_py.telemetry.alerts import ALERTS
from conduit_py.telemetry.export import BOARDS, export
from conduit_py.telemetry.metrics_text import CONTENT_TYPE, metrics_text
from conduit_py.telemetry.panels import ANNOTATIONS, SERVERS, Query, of_servers
from conduit_py.testing import Block, Fail, ScriptedDestination, ScriptedSource

if TYPE_CHECKING:
    from prometheus_server import Programs, Prometheus, Scraping

CHOSEN = {"$__rate_interval": "300s", "$pipeline": ".*", "$node": ".*", "$instance": ".*", "$job": ".*"}


@processor
def pick(record: Record) -> Record | None:
    """Filters some records and refuses others."""
    number = int(record.position.rpartition(b":")[2])
    if number % 10 == 7:
        raise ValueError("a seven")
    return None if number % 10 == 3 else record


@processor
def stamp(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "at": time.time()}


class Behind(ScriptedSource):
    """Says in every unit how far it is behind."""

    queue_counts = QueueCounts(held=1, extended=2, lost=3, taken_over=4, duplicates=5, unreadable=6, failed=7)

    async def lag(self) -> Lag:
        return Lag(records=7, bytes=700, seconds=0.5, retained_bytes=9000, partitions={"orders:0": 4, "orders:1": 3})


def pipelines(folder: Path) -> list[Pipeline]:
    """One that is well but for its dead letters, and one for each way of not being well."""

    def scripted(id: str, answer: object) -> Pipeline:
        destination = ScriptedDestination(name=id, script={5: answer})
        return Pipeline(id, sources=[Source("in", Behind(records=50))], destinations=[Destination("out", destination)])

    orders = Pipeline(
        "orders",
        sources=[Source("in", generator.Source(rate=500))],
        processors=[pick],
        destinations=[Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
        dead_letters=DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json")),
    )
    counted = Pipeline(
        "counted",
        sources=[Source("in", generator.Source(rate=50, fields={"n": "int"}))],
        processors=[stamp, window.Tumbling(time="at", size_seconds=3600)],
        destinations=[Destination("out", file.Destination(path=folder / "counted.jsonl", format="json"))],
        delivery="exactly_once",
    )
    stuck = scripted("stuck", Block())
    flaky = scripted("flaky", Fail("link down", times=1000))
    broken = scripted("broken", Fail("gone", error=FatalError))
    return [orders, counted, stuck, flaky, broken]


@asynccontextmanager
async def serve_fleet(folder: Path) -> AsyncIterator[tuple[str, Fleet]]:
    """The address of a fleet's metrics, while its pipelines run."""
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery, recovery=Recovery(delay_seconds=0.2, delay_max_seconds=0.2))
        for pipeline in pipelines(folder):
            await fleet.add(pipeline)
        await fleet.boot()
        serve = partial(trio.serve_tcp, partial(_answer, fleet), 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}", fleet
        await fleet.shutdown(1)
        nursery.cancel_scope.cancel()


async def _answer(fleet: Fleet, stream: trio.SocketStream) -> None:
    # On a busy machine Prometheus gives up a scrape and closes; the next one is answered as if nothing had been.
    with suppress(trio.BrokenResourceError):
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request:
                if not (more := await stream.receive_some()):
                    return
                request += more
            await stream.send_all(_response(metrics_text(fleet)))


def _response(text: bytes) -> bytes:
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


async def test_every_query_parses_and_finds_something(
    scraping: "Scraping", prometheus_programs: "Programs", tmp_path: Path
) -> None:
    export(tmp_path)
    async with serve_fleet(tmp_path) as (target, fleet), scraping(target) as prometheus:
        queries = [query for board in BOARDS for panel in board.panels for query in panel.queries]
        queries += [Query(alert.value, alert.summary) for alert in ALERTS]
        assert await _missing(prometheus, queries) == []
        for board in BOARDS:
            for variable in (*SERVERS, *board.variables):
                values = f"/api/v1/label/{variable.label}/values"
                assert await prometheus.get(values, **{"match[]": chosen(variable.selector)}), variable
        for annotation in ANNOTATIONS:
            # Nothing happens to a server as short-lived as this: what they compare is found.
            compared = annotation.expr.partition(" > 0")[0]
            assert await _missing(prometheus, [Query(compared, annotation.text)]) == []
            await prometheus.get("/api/v1/query", query=chosen(of_servers(annotation.expr)))
        await _rules_are_well(prometheus)
        _lint(prometheus_programs, metrics_text(fleet))


async def _missing(prometheus: "Prometheus", queries: list[Query]) -> list[Query]:
    """The queries that find nothing, however long one waits for enough scrapes; rates need two."""
    with trio.move_on_after(300):
        while queries:
            await trio.sleep(1)
            queries = [query for query in queries if not await _has_series(prometheus, query)]
    return queries


async def _has_series(prometheus: "Prometheus", query: Query) -> bool:
    """Whether the answer has a number, in a series with all labels that the legend names."""
    result = (await prometheus.get("/api/v1/query", query=chosen(query.expr)))["result"]
    labels = set(re.findall(r"\{\{ ?\$?(?:labels\.)?(\w+) ?\}\}", query.legend))
    return any(labels <= series["metric"].keys() and not math.isnan(float(series["value"][1])) for series in result)


def chosen(text: str) -> str:
    for variable, value in CHOSEN.items():
        text = text.replace(variable, value)
    assert "$" not in text, text
    return text


async def _rules_are_well(prometheus: "Prometheus") -> None:
    """All are loaded and evaluated, and the pipeline that failed for good is noticed."""

    found: dict[str, Any] = {}
    with trio.fail_after(300):
        while {rule["health"] for rule in found.values()} != {"ok"}:
            [group] = (await prometheus.get("/api/v1/rules"))["groups"]
            found = {rule["name"]: rule for rule in group["rules"]}

    assert set(found) == {alert.name for alert in ALERTS}
    [noticed] = found["ConduitPipelineDegraded"]["alerts"]
    assert noticed["labels"]["pipeline_name"] == "broken"


def _lint(prometheus_programs: "Programs", text: bytes) -> None:
    done = subprocess.run(
        [prometheus_programs.promtool, "check", "metrics"], input=text, capture_output=True, timeout=300
    )
    # What prometheus_client itself exposes is not ours to name.
    errors = [line for line in done.stderr.decode().splitlines() if "conduit_" in line or "error" in line]

    assert errors == []
