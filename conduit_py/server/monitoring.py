"""Health, readiness and metrics over HTTP, for load balancers, orchestrators and Prometheus.

The page has charts of its own: counters of every pipeline for a quarter of an hour, sampled every few seconds.
"""

import logging
import time
from array import array
from collections import Counter
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, Depends, Response
from fastapi.requests import HTTPConnection
from pydantic import Field

from conduit_py.errors import ConduitError
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.server.errors import error_responses
from conduit_py.server.pipelines import PipelineId
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel
from conduit_py.status import Status
from conduit_py.stream.meter import DURATION_BOUNDS, Progress
from conduit_py.telemetry.metrics_text import CONTENT_TYPE, metrics_text

router = APIRouter()

STORE_SECONDS = 5.0
"""How long the store may take to answer before it counts as stuck."""


class HealthView(ApiModel):
    """Whether the state store answers."""

    status: Literal["ok", "unwell"]
    reason: str | None = None


class ProgressAgeView(ApiModel):
    """The progress of a running pipeline."""

    id: str
    progress_age_seconds: float = Field(description="for how long it has had records in flight and settled none")
    in_flight: int
    blocked_on: str | None


class ReadyView(ApiModel):
    """Whether the server has started its pipelines, and the status of each."""

    status: Literal["ready", "starting", "stopping"]
    pipelines: dict[Status, int] = Field(description="how many there are of each status")
    degraded: list[str]
    file_problems: int = Field(description="how many problems keep definitions in the files from taking effect")
    running: list[ProgressAgeView]


@router.get("/healthz", tags=["health"], responses={**error_responses(), 503: {"model": HealthView}})
async def healthz(service: InService, response: Response) -> HealthView:
    """200 while the state store answers, else 503."""
    reason = await _store_error(service)
    if reason is None:
        return HealthView(status="ok")
    response.status_code = 503
    return HealthView(status="unwell", reason=reason)


@router.get("/readyz", tags=["health"], responses={**error_responses(), 503: {"model": ReadyView}})
async def readyz(service: InService, response: Response) -> ReadyView:
    """200 from when every pipeline that should run was started until the server begins to stop, else 503."""
    # Neither degraded pipelines nor broken files make it unready: a balancer would take down the server that others
    # run on.
    status: Literal["ready", "starting", "stopping"] = "ready" if service.booted.is_set() else "starting"
    if service.closing.is_set():
        status = "stopping"
    if status != "ready":
        response.status_code = 503
    counts = Counter(member.state.status for member in service.fleet)
    return ReadyView(
        status=status,
        pipelines={each: counts[each] for each in Status},
        degraded=[member.pipeline.id for member in service.fleet if member.state.status is Status.DEGRADED],
        # Only their number, for this needs no token: messages quote files.
        file_problems=len(service.fleet.problems),
        running=_running(service),
    )


class Scrapes:
    """Makes the metrics for all clients that wait for them together. What a client gets was read after it asked."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._begun = 0
        self._text = b""

    async def text(self, service: Service) -> bytes:
        # Shared: 200 pipelines have 3 MB of metrics, which hold the event loop while they are written. Made for each of
        # hundreds of clients, they would leave it no time for pipelines and `/healthz`.
        asked = self._begun
        async with self._lock:
            if self._begun == asked:
                self._begun += 1
                await service.count_letters()
                self._text = metrics_text(service.fleet)
            return self._text


async def _scrapes_of(connection: HTTPConnection) -> Scrapes:
    scrapes = connection.app.state.scrapes
    assert isinstance(scrapes, Scrapes)
    return scrapes


@router.get(
    "/metrics",
    tags=["metrics"],
    response_class=Response,
    responses={
        **error_responses(),
        200: {
            "description": "the text format of Prometheus",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def metrics(service: InService, scrapes: Annotated[Scrapes, Depends(_scrapes_of)]) -> Response:
    """Everything that is counted, of every pipeline and node."""
    return Response(await scrapes.text(service), headers={"content-type": CONTENT_TYPE})


async def _store_error(service: Service) -> str | None:
    # The reason goes out without a token: it names no path and quotes no error.
    try:
        # A query, not a flag: a disk that hangs shows only in an answer that does not come.
        with trio.fail_after(STORE_SECONDS):
            await service.store.pipelines()
    except trio.TooSlowError:
        return "the state store does not answer"
    except ConduitError as error:
        return f"the state store failed: {error.code}"
    return None


def _running(service: Service) -> list[ProgressAgeView]:
    views = []
    for member in service.fleet:
        progress = member.progress()
        if member.running and progress is not None:
            views.append(
                ProgressAgeView(
                    id=member.pipeline.id,
                    progress_age_seconds=progress.stalled_seconds,
                    in_flight=progress.in_flight,
                    blocked_on=progress.blocked_on,
                )
            )
    return views


log = logging.getLogger("conduit_py.server")

history_router = APIRouter(prefix="/api/v1/pipelines/{id}/history", tags=["pipelines"])

SAMPLE_SECONDS = 5.0
SAMPLES_MAX = 180
"""For each pipeline: a quarter of an hour."""
_COUNTERS = ("read", "acked", "dead_letters")
_WIDTH = 1 + len(_COUNTERS) + len(DURATION_BOUNDS) + 1


class SampleView(ApiModel):
    """The counters of a pipeline at a time. They begin at 0 with every start."""

    at: float = Field(description="seconds since 1970")
    read: int
    acked: int
    dead_letters: int
    settling: list[int] = Field(description="records by how long they took from read to acked; see `bounds`")


class ChartHistoryView(ApiModel):
    """What the charts of a pipeline show, the oldest sample first."""

    interval_seconds: float
    bounds: list[float] = Field(
        description="`settling[i]` of a sample were at most `bounds[i]` seconds, the last above all"
    )
    samples: list[SampleView]


class ChartHistory:
    """Samples of every pipeline that was started, in memory only. Old samples make room for new ones.

    A sample is 20 numbers of 8 bytes, so a pipeline takes 29 kB at most, and two hundred take 6 MB.
    """

    def __init__(self) -> None:
        # One flat array for each pipeline: as objects, the same numbers would take six times as much.
        self._rows: dict[str, array[float]] = {}

    async def follow(self, fleet: Fleet) -> None:
        """Take samples until cancelled."""
        while True:
            try:
                await self.sample(fleet)
            except Exception:  # a boundary: a chart may not end the server
                log.exception("the history of the pipelines could not be sampled")
            await trio.sleep(SAMPLE_SECONDS)

    async def sample(self, fleet: Fleet) -> None:
        """Take a sample of every pipeline, and forget those that are gone."""
        for member in fleet:
            progress = member.progress()
            if progress is not None:
                self._add(member.pipeline.id, progress)
            # Pipelines share this event loop: a large fleet must not stop them all for its sum.
            await trio.lowlevel.checkpoint()
        present = {member.pipeline.id for member in fleet}
        self._rows = {id: rows for id, rows in self._rows.items() if id in present}

    def _add(self, id: str, progress: Progress) -> None:
        rows = self._rows.setdefault(id, array("d"))
        if len(rows) == SAMPLES_MAX * _WIDTH:
            del rows[:_WIDTH]
        settling = [meter.settling.counts for meter in progress.nodes if meter.kind == "source"]
        counts = [sum(column) for column in zip(*settling, strict=True)] or [0] * (len(DURATION_BOUNDS) + 1)
        rows.extend([time.time(), *(getattr(progress, name) for name in _COUNTERS), *counts])

    def view(self, id: str) -> ChartHistoryView:
        rows = self._rows.get(id, array("d"))
        samples = [_sample_view(rows[start : start + _WIDTH]) for start in range(0, len(rows), _WIDTH)]
        return ChartHistoryView(interval_seconds=SAMPLE_SECONDS, bounds=list(DURATION_BOUNDS), samples=samples)


def _sample_view(row: "array[float]") -> SampleView:
    # A double holds every integer up to 2^53, which no counter of records reaches.
    at, read, acked, dead_letters, *settling = row
    return SampleView(
        at=at, read=int(read), acked=int(acked), dead_letters=int(dead_letters), settling=list(map(int, settling))
    )


async def _history_of(connection: HTTPConnection) -> ChartHistory:
    history = connection.app.state.history
    assert isinstance(history, ChartHistory)
    return history


@history_router.get("", responses=error_responses(404))
async def show_history(
    service: InService, history: Annotated[ChartHistory, Depends(_history_of)], id: PipelineId
) -> ChartHistoryView:
    """The counters of a pipeline over the last quarter of an hour, for charts; since the server was started."""
    return history.view(service.fleet[id].pipeline.id)
