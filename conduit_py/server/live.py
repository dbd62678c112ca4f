"""Live over HTTP: the whole fleet twice a second, as server-sent events."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

import trio
from fastapi import APIRouter, Depends
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from conduit_py.errors import FleetError
from conduit_py.server.pipelines import pipeline_views
from conduit_py.server.problems import documented
from conduit_py.server.service import Here, Service
from conduit_py.server.views import PipelineView, View

router = APIRouter(prefix="/api/v1/live", tags=["live"])

INTERVAL_SECONDS = 0.5
SEND_SECONDS = 10.0
"""How long a client may leave an event unread before it is dropped."""
CLIENTS_MAX = 100


class LiveFull(FleetError):
    """As many clients watch as one server bears."""

    code = "live.full"


class FleetEvent(View):
    """The data of an event `fleet`."""

    at: float
    pipelines: list[PipelineView]


class Live:
    """The newest event, made at most once an interval however many clients watch. Nothing is queued for any."""

    def __init__(self) -> None:
        self._clients = 0
        self._made_at = float("-inf")
        self._event = b""

    @contextmanager
    def client(self) -> Iterator[None]:
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1

    @property
    def full(self) -> bool:
        return self._clients >= CLIENTS_MAX

    def event(self, service: Service) -> bytes:
        now = trio.current_time()
        if now - self._made_at >= INTERVAL_SECONDS:
            data = FleetEvent(at=time.time(), pipelines=pipeline_views(service)).model_dump_json()
            self._made_at, self._event = now, f"event: fleet\ndata: {data}\n\n".encode()
        return self._event


class LiveResponse(StreamingResponse):
    """A stream that counts as a client while it lasts, and ends when its client does not keep up."""

    media_type = "text/event-stream"

    def __init__(self, live: Live, service: Service) -> None:
        super().__init__(_events(live, service))
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with trio.fail_after(SEND_SECONDS):
                await send(message)

        with self._live.client():
            try:
                await super().__call__(scope, receive, send_in_time)
            except trio.TooSlowError:
                return


async def _live_of(connection: HTTPConnection) -> Live:
    live = connection.app.state.live
    assert isinstance(live, Live)
    return live


@router.get(
    "",
    status_code=200,
    response_class=StreamingResponse,
    response_model=None,
    responses={
        **documented(409),
        200: {
            "description": "server-sent events `fleet`, at most two a second, whose data is a FleetEvent",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def watch_fleet(service: Here, live: Annotated[Live, Depends(_live_of)]) -> LiveResponse:
    """Every pipeline at a glance, again and again, until the client leaves or the server stops."""
    if live.full:
        raise LiveFull(f"{CLIENTS_MAX} clients watch already", suggestion="close a page, or ask for /api/v1/pipelines")
    return LiveResponse(live, service)


async def _events(live: Live, service: Service) -> AsyncIterator[bytes]:
    while not service.closing.is_set():
        yield live.event(service)
        with trio.move_on_after(INTERVAL_SECONDS):
            await service.closing.wait()
