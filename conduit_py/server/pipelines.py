"""Pipelines over HTTP: see them, start, stop and restart them."""

import logging
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict

from conduit_py.pipeline_settings import Id
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService, Service
from conduit_py.server.views import (
    AcceptedView,
    ApiModel,
    PipelineDetailsView,
    PipelinesView,
    PipelineView,
    pipeline_details_view,
    pipeline_view,
)

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/pipelines", tags=["pipelines"])

PipelineId = Annotated[Id, Path(description="the id of a pipeline")]


class StopRequest(ApiModel):
    """How to stop: gracefully, or at once, in which case what is in flight is read again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    force: bool = False


@router.get("", responses=error_responses())
async def list_pipelines(service: InService) -> PipelinesView:
    """Every pipeline at a glance."""
    return PipelinesView(pipelines=pipeline_views(service))


@router.get("/{id}", responses=error_responses(404))
async def show_pipeline(service: InService, id: PipelineId) -> PipelineDetailsView:
    """A pipeline with its graph and the counters of its nodes."""
    return pipeline_details_view(service.fleet[id], service.redaction)


@router.post("/{id}/start", status_code=202, responses=error_responses(404, 409, 503))
async def start_pipeline(service: InService, id: PipelineId) -> AcceptedView:
    """Start a pipeline that is not running; it goes on from its positions."""
    service.fleet.start(id)
    return _log_and_answer(service, id, "start")


@router.post("/{id}/stop", status_code=202, responses=error_responses(404, 409))
async def stop_pipeline(service: InService, id: PipelineId, request: StopRequest | None = None) -> AcceptedView:
    """Stop a running pipeline; it stays stopped until a user starts it, also after a restart of the server."""
    force = request is not None and request.force
    service.fleet.stop(id, force=force)
    return _log_and_answer(service, id, "forceful stop" if force else "stop")


@router.post("/{id}/restart", status_code=202, responses=error_responses(404, 409, 503))
async def restart_pipeline(service: InService, id: PipelineId) -> AcceptedView:
    """Stop a pipeline gracefully if it is running, then start it."""
    service.restart(id)
    return _log_and_answer(service, id, "restart")


@router.post("/{id}/reset", responses=error_responses(404, 409, 503))
async def reset_pipeline(service: InService, id: PipelineId) -> AcceptedView:
    """Have all sources start from the beginning, with the state of processors forgotten; only while stopped."""
    await service.fleet.start_over(id)
    return _log_and_answer(service, id, "reset")


def pipeline_views(service: Service) -> list[PipelineView]:
    return [pipeline_view(member, service.redaction) for member in service.fleet]


def _log_and_answer(service: Service, id: str, what: str) -> AcceptedView:
    log.info("pipeline %s: %s, over HTTP", id, what)
    return AcceptedView(id=id, status=service.fleet[id].state.status)
