"""Pipelines over HTTP: see, start, stop, restart and reset them, read their files again, list plugins.

No definition ever comes over HTTP: a token must not be enough to run code.
"""

import logging
from typing import Annotated

import msgspec
import trio
from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field

from conduit_py.errors import FleetError, ShuttingDown
from conduit_py.lifecycle.reloader import Step
from conduit_py.pipeline_settings import Id
from conduit_py.sdk import registry
from conduit_py.server.access import AskedBy
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService, Service
from conduit_py.server.views import (
    AcceptedView,
    ApiModel,
    DefinitionView,
    PipelineDetailsView,
    PipelinesView,
    PipelineView,
    PluginDetailsView,
    PluginView,
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
