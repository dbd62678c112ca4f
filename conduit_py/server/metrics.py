"""Metrics over HTTP, as Prometheus reads them."""

from fastapi import APIRouter, Response

from conduit_py.server.errors import error_responses
from conduit_py.server.service import InService
from conduit_py.telemetry.metrics_text import CONTENT_TYPE, metrics_text

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **error_responses(),
        200: {
            "description": "the text format of Prometheus",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def metrics(service: InService) -> Response:
    """Everything that is counted, of every pipeline and node."""
    await service.count_letters()
    return Response(metrics_text(service.fleet), headers={"content-type": CONTENT_TYPE})
