"""Reload over HTTP: read the pipeline files again. No definition ever comes over HTTP."""

import logging

from fastapi import APIRouter
from pydantic import Field

from conduit_py.errors import FleetError, ShuttingDown
from conduit_py.lifecycle.reloader import Step
from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService
from conduit_py.server.views import ApiModel, DefinitionView, definition_view

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/reload", tags=["pipelines"])


class NoFiles(FleetError):
    """The pipelines of this server do not come from files."""

    code = "reload.no_files"


class ReloadView(ApiModel):
    """What the files changed: a step for each pipeline that differs, and everything that is wrong with the files."""

    steps: dict[str, Step] = Field(description="by pipeline: what is being done; its status says when it is done")
    problems: list[DefinitionView]


@router.post("", status_code=202, responses=error_responses(409, 503))
async def reload(service: InService) -> ReloadView:
    """Read all pipeline files again, with what they refer to, and begin to carry out what has changed."""
    if service.reloader is None:
        raise NoFiles("the pipelines of this server do not come from files")
    if service.closing.is_set():
        raise ShuttingDown("the server is shutting down and starts nothing any more")
    log.info("reload, over HTTP")
    done = await service.reloader.reload(afresh=True)
    return ReloadView(
        steps=done.steps, problems=[definition_view(problem, service.redaction) for problem in done.problems]
    )
