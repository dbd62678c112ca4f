"""Positions and sources over HTTP: from where sources go on, and what they read once more."""

import logging
from base64 import b64decode, b64encode
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints

from conduit_py.errors import PipelineIdle
from conduit_py.pipeline_settings import NodeId
from conduit_py.positions import HistoryPoint
from conduit_py.sdk.source import SnapshotRequest
from conduit_py.server.access import AllowedRole, AskedBy, Role
from conduit_py.server.errors import error_responses
from conduit_py.server.pipelines import PipelineId
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel, HistoryView, PointView, PositionReplayView, PositionsView, SnapshotView

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/pipelines/{id}/positions", tags=["positions"])
source_router = APIRouter(prefix="/api/v1/pipelines/{id}/sources", tags=["sources"])

DURABLE_SECONDS = 5.0
"""How long an answer waits until a request for a snapshot survives a crash. Mostly that takes a moment."""

KEEP_STATE = "leave the state of processors as it is, though it has counted what was read"
SourceId = Annotated[NodeId, Path(description="the id of a source of the pipeline")]
Base64 = Annotated[
    str,
    StringConstraints(
        max_length=65_536, pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", strict=True
    ),
]


class PositionRequest(ApiModel):
    """The position after which a source goes on, in base64."""

    model_config = ConfigDict(extra="forbid")

    position: Base64
    keep_state: bool = Field(default=False, strict=True, description=KEEP_STATE)


class ReplayRequest(ApiModel):
    """From when on to read again: a time with its zone, or `start` for everything there is."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    since: AwareDatetime | Literal["start"] = Field(alias="from")
    keep_state: bool = Field(default=False, strict=True, description=KEEP_STATE)


class SnapshotBody(ApiModel):
    """What a source is to read as a whole."""

    model_config = ConfigDict(extra="forbid", strict=True)

    collection: str = Field(min_length=1, max_length=500, description="a table, a topic: as in the metadata of records")
    where: str | None = Field(
        default=None,
        min_length=1,
        max_length=10_000,
        description="a condition in the language of the system, for some records only: it needs the role admin",
    )


@router.get("", responses=error_responses(404, 503))
async def list_positions(service: InService, id: PipelineId) -> PositionsView:
    """The durable position of every source; null for one that starts from the beginning."""
    return await _positions(service, id)


@router.put("/{source}", responses=error_responses(404, 409, 503))
async def set_position(
    service: InService, asked_by: AskedBy, id: PipelineId, source: SourceId, request: PositionRequest
) -> PositionsView:
    """Have a source go on after another position; only while the pipeline is stopped."""
    # The pattern of the request has checked it: b64decode alone would skip characters that are no base64.
    await service.fleet.set_position(id, source, b64decode(request.position), keep_state=request.keep_state)
    log.info("pipeline %s: position of %s set (asked by %s)", id, source, asked_by)
    return await _positions(service, id)


@router.delete("/{source}", responses=error_responses(404, 409, 503))
async def reset_position(
    service: InService,
    asked_by: AskedBy,
    id: PipelineId,
    source: SourceId,
    keep_state: Annotated[bool, Query(description=KEEP_STATE)] = False,
) -> PositionsView:
    """Have a source start from the beginning; only while the pipeline is stopped."""
    await service.fleet.set_position(id, source, None, keep_state=keep_state)
    log.info("pipeline %s: position of %s reset (asked by %s)", id, source, asked_by)
    return await _positions(service, id)


@router.get("/{source}/history", responses=error_responses(404, 503))
async def list_points(service: InService, id: PipelineId, source: SourceId) -> HistoryView:
    """The points of the past to which a source can be set back, the oldest first."""
    trail = await service.fleet.trail(id, source)
    return HistoryView(points=[_point(point) for point in trail.points])


@router.post("/{source}/replay", responses=error_responses(404, 409, 503))
async def replay(
    service: InService, asked_by: AskedBy, id: PipelineId, source: SourceId, request: ReplayRequest
) -> PositionReplayView:
    """Have a source read again what was settled since a time, or everything; only while the pipeline is stopped.

    It is set back to the last point that is not after the time, so a little more may be read again.
    """
    point = None
    if request.since == "start":
        await service.fleet.set_position(id, source, None, keep_state=request.keep_state)
    else:
        # Points are kept in seconds since 1970; an earlier time cannot name one.
        since = max(request.since.timestamp(), 0.0)
        point = _point(await service.fleet.replay(id, source, since, keep_state=request.keep_state))
    what = "pipeline %s: %s is to read again what came since %s (asked by %s)"
    log.info(what, id, source, request.since, asked_by)
    return PositionReplayView(positions=(await _positions(service, id)).positions, point=point)


@source_router.post("/{source}/snapshot", status_code=202, responses=error_responses(404, 409))
async def request_snapshot(
    service: InService, asked_by: AskedBy, allowed: AllowedRole, id: PipelineId, source: SourceId, request: SnapshotBody
) -> SnapshotView:
    """Have a source of a running pipeline read a collection as a whole, while it goes on with what it reads."""
    # The condition is code for the system of the source. To change what a pipeline does, one must be admin.
    if request.where is not None and allowed < Role.ADMIN:
        raise HTTPException(403, "a condition needs a token with the role admin")
    member = service.fleet.with_source(id, source)
    if member.supervisor is None:
        raise PipelineIdle(f"pipeline {id!r} is not running", suggestion="start it first")
    wanted = SnapshotRequest(request.collection, request.where)
    taken = await member.supervisor.request_snapshot(source, wanted)
    log.info("pipeline %s: snapshot of %r by %s requested (asked by %s)", id, request.collection, source, asked_by)
    with trio.move_on_after(DURABLE_SECONDS):
        await taken.wait()
    return SnapshotView(source=source, collection=request.collection, durable=taken.is_set())


def _point(point: HistoryPoint) -> PointView:
    return PointView(at=point.at, position=_in_base64(point.position), start=point.start)


def _in_base64(position: bytes | None) -> str | None:
    return None if position is None else b64encode(position).decode()


async def _positions(service: Service, id: str) -> PositionsView:
    positions = await service.fleet.positions(id)
    # By the sources of the graph: the store may hold positions of sources that are no longer in the pipeline.
    shown = {node.id: positions.get(node.id) for node in service.fleet[id].graph.sources}
    return PositionsView(positions={source: _in_base64(each) for source, each in shown.items()})
