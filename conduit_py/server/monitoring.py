"""Health, readiness and metrics over HTTP, for load balancers, orchestrators and Prometheus."""

from collections import Counter
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, Depends, Response
from fastapi.requests import HTTPConnection
from pydantic import Field

from conduit_py.errors import ConduitError
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel
from conduit_py.status import Status
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
