"""Pipelines over HTTP: see, start, stop, restart and reset them, read their files again, list plugins.

Below them are their positions and sources: from where sources go on, and what they read once more.

No definition ever comes over HTTP: a token must not be enough to run code.
"""

import logging
from base64 import b64decode, b64encode
from typing import Annotated, Literal

import msgspec
import trio
from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints

from conduit_py.errors import FleetError, PipelineIdle, ShuttingDown
from conduit_py.lifecycle.reloader import Step
from conduit_py.pipeline_settings import Id, NodeId
from conduit_py.positions import HistoryPoint
from conduit_py.sdk import registry
from conduit_py.sdk.source import SnapshotRequest
from conduit_py.server.access import AllowedRole, AskedBy, Role
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService, Service
from conduit_py.server.views import (
    AcceptedView,
    ApiModel,
    DefinitionView,
    HistoryView,
    PipelineDetailsView,
    PipelinesView,
    PipelineView,
    PluginDetailsView,
    PluginView,
    PointView,
    PositionReplayView,
    PositionsView,
    SnapshotView,
    definition_view,
    pipeline_details_view,
    pipeline_view,
)

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/pipelines", tags=["pipelines"])
reload_router = APIRouter(prefix="/api/v1/reload", tags=["pipelines"])

plugin_router = APIRouter(prefix="/api/v1/plugins", tags=["plugins"])


PipelineId = Annotated[Id, Path(description="the id of a pipeline")]


class NoFiles(FleetError):
    """The pipelines of this server do not come from files."""

    code = "reload.no_files"


class ReloadView(ApiModel):
    """What the files changed: a step for each pipeline that differs, and everything that is wrong with the files."""

    steps: dict[str, Step] = Field(description="by pipeline: what is being done; its status says when it is done")
    problems: list[DefinitionView]


class StopRequest(ApiModel):
    """How to stop: gracefully, or at once, in which case what is in flight is read again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    force: bool = False


@router.get("", responses=error_responses())
async def list_pipelines(service: InService) -> PipelinesView:
    """Every pipeline at a glance, and every problem in the pipeline files."""
    return PipelinesView(pipelines=pipeline_views(service), problems=problem_views(service))


@router.get("/{id}", responses=error_responses(404))
async def show_pipeline(service: InService, id: PipelineId) -> PipelineDetailsView:
    """A pipeline with its graph and the counters of its nodes."""
    return pipeline_details_view(service.fleet[id], service.redaction)


@router.post("/{id}/start", status_code=202, responses=error_responses(404, 409, 503))
async def start_pipeline(service: InService, id: PipelineId, asked_by: AskedBy) -> AcceptedView:
    """Start a pipeline that is not running; it goes on from its positions."""
    service.fleet.start(id, asked_by=asked_by)
    return AcceptedView(id=id, status=service.fleet[id].state.status)


@router.post("/{id}/stop", status_code=202, responses=error_responses(404, 409))
async def stop_pipeline(
    service: InService, id: PipelineId, asked_by: AskedBy, request: StopRequest | None = None
) -> AcceptedView:
    """Stop a running pipeline; it stays stopped until a user starts it, also after a restart of the server."""
    force = request is not None and request.force
    service.fleet.stop(id, force=force, asked_by=asked_by)
    return _log_and_answer(service, id, "forceful stop" if force else "stop", asked_by)


@router.post("/{id}/restart", status_code=202, responses=error_responses(404, 409, 503))
async def restart_pipeline(service: InService, id: PipelineId, asked_by: AskedBy) -> AcceptedView:
    """Stop a pipeline gracefully if it is running, then start it."""
    service.restart(id, asked_by=asked_by)
    return _log_and_answer(service, id, "restart", asked_by)


@router.post("/{id}/reset", responses=error_responses(404, 409, 503))
async def reset_pipeline(service: InService, id: PipelineId, asked_by: AskedBy) -> AcceptedView:
    """Have all sources start from the beginning, with the state of processors forgotten; only while stopped."""
    await service.fleet.start_over(id)
    return _log_and_answer(service, id, "reset", asked_by)


@reload_router.post("", status_code=202, responses=error_responses(409, 503))
async def reload(service: InService, asked_by: AskedBy) -> ReloadView:
    """Read all pipeline files again, with what they refer to, and begin to carry out what has changed."""
    # Tests and embedding applications add pipelines directly; there are no files to read again.
    if service.reloader is None:
        raise NoFiles("the pipelines of this server do not come from files")
    if service.closing.is_set():
        raise ShuttingDown("the server is shutting down and starts nothing any more")
    log.info("reload of the pipeline files (asked by %s)", asked_by)
    done = await service.reloader.reload(afresh=True)
    return ReloadView(
        steps=done.steps, problems=[definition_view(problem, service.redaction) for problem in done.problems]
    )


def pipeline_views(service: Service) -> list[PipelineView]:
    return [pipeline_view(member, service.redaction) for member in service.fleet]


def problem_views(service: Service) -> list[DefinitionView]:
    return [definition_view(problem, service.redaction) for problem in service.fleet.problems]


def _log_and_answer(service: Service, id: str, what: str, asked_by: str) -> AcceptedView:
    """Log the request at once: a stop that drains may take minutes to end."""
    log.info("pipeline %s: %s (asked by %s)", id, what, asked_by)
    return AcceptedView(id=id, status=service.fleet[id].state.status)


@plugin_router.get("", responses=error_responses())
async def list_plugins() -> list[PluginView]:
    """Every connector and processor that is installed."""
    # In a thread: the first call imports every plugin, which takes seconds.
    entries = await trio.to_thread.run_sync(registry.list_plugins)
    return [PluginView(**msgspec.structs.asdict(entry)) for entry in entries]


@plugin_router.get("/{kind}/{name}", responses=error_responses(404, 503))
async def show_plugin(kind: registry.Kind, name: str) -> PluginDetailsView:
    """A plugin with the JSON schema of its options."""
    # In a thread: loading a plugin imports its client library, and pipelines share this event loop.
    return await trio.to_thread.run_sync(_plugin_details, kind, name)


def _plugin_details(kind: registry.Kind, name: str) -> PluginDetailsView:
    plugin = registry.load_plugin(kind, name)
    summary, options = registry.summary(plugin), registry.options_schema(plugin)
    return PluginDetailsView(kind=kind, name=name, summary=summary, available=True, options=options)


position_router = APIRouter(prefix="/api/v1/pipelines/{id}/positions", tags=["positions"])
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


@position_router.get("", responses=error_responses(404, 503))
async def list_positions(service: InService, id: PipelineId) -> PositionsView:
    """The durable position of every source; null for one that starts from the beginning."""
    return await _positions(service, id)


@position_router.put("/{source}", responses=error_responses(404, 409, 503))
async def set_position(
    service: InService, asked_by: AskedBy, id: PipelineId, source: SourceId, request: PositionRequest
) -> PositionsView:
    """Have a source go on after another position; only while the pipeline is stopped."""
    # The pattern of the request has checked it: b64decode alone would skip characters that are no base64.
    await service.fleet.set_position(id, source, b64decode(request.position), keep_state=request.keep_state)
    log.info("pipeline %s: position of %s set (asked by %s)", id, source, asked_by)
    return await _positions(service, id)


@position_router.delete("/{source}", responses=error_responses(404, 409, 503))
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


@position_router.get("/{source}/history", responses=error_responses(404, 503))
async def list_points(service: InService, id: PipelineId, source: SourceId) -> HistoryView:
    """The points of the past to which a source can be set back, the oldest first."""
    history = await service.fleet.position_history(id, source)
    return HistoryView(points=[_point(point) for point in history.points])


@position_router.post("/{source}/replay", responses=error_responses(404, 409, 503))
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
