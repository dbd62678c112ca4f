"""The last quarter of an hour of every pipeline, for the charts of the page: counters, sampled every few seconds."""

import logging
import time
from array import array
from typing import Annotated

import trio
from fastapi import APIRouter, Depends
from fastapi.requests import HTTPConnection
from pydantic import Field

from conduit_py.lifecycle.fleet import Fleet
from conduit_py.server.errors import error_responses
from conduit_py.server.pipelines import PipelineId
from conduit_py.server.service import InService
from conduit_py.server.views import ApiModel
from conduit_py.stream.meter import DURATION_BOUNDS, Progress

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/pipelines/{id}/history", tags=["pipelines"])

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


@router.get("", responses=error_responses(404))
async def show_history(
    service: InService, history: Annotated[ChartHistory, Depends(_history_of)], id: PipelineId
) -> ChartHistoryView:
    """The counters of a pipeline over the last quarter of an hour, for charts; since the server was started."""
    return history.view(service.fleet[id].pipeline.id)
