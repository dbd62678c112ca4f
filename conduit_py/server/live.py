"""Server-sent events: the stream to one client, and the state of the fleet or of one pipeline twice a second."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any

import trio
from fastapi import APIRouter, Depends, Query
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from conduit_py.errors import FleetError, PipelineUnknown
from conduit_py.pipeline_settings import Id
from conduit_py.server.errors import error_responses
from conduit_py.server.pipelines import pipeline_views, problem_views
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel, DefinitionView, PipelineDetailsView, PipelineView, pipeline_details_view

router = APIRouter(prefix="/api/v1/live", tags=["live"])

INTERVAL_SECONDS = 0.5
CLIENTS_MAX = 100
FLEET_EVERY = 4
"""A client that watches one pipeline gets the whole fleet with every so many events of that pipeline."""


SEND_SECONDS = 10.0
"""How long a client may leave an event unread before its stream ends."""


class EventStream(StreamingResponse):
    """A response of server-sent events. Enters `held` while it lasts, and ends when its client does not keep up."""

    media_type = "text/event-stream"

    def __init__(self, held: AbstractContextManager[object], events: AsyncIterator[bytes]) -> None:
        super().__init__(events)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            # A client that stops reading must not keep its place among the few that are allowed.
            with trio.fail_after(SEND_SECONDS):
                await send(message)

        # Held here, not by the route: the route has returned before the first event is sent.
        with self._held:
            try:
                await super().__call__(scope, receive, send_in_time)
            except trio.TooSlowError:
                return


def encode_event(name: str, data: ApiModel) -> bytes:
    """One event as it is sent."""
    return f"event: {name}\ndata: {data.model_dump_json()}\n\n".encode()


def event_response(description: str) -> dict[int | str, dict[str, Any]]:
    """How a route that answers with events is documented."""
    return {200: {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}


class LiveFull(FleetError):
    """As many clients watch the server as it allows."""

    code = "live.full"


class FleetEvent(ApiModel):
    """The data of an event `fleet`."""

    at: float
    pipelines: list[PipelineView]
    problems: list[DefinitionView]


class PipelineEvent(ApiModel):
    """The data of an event `pipeline`."""

    at: float
    pipeline: PipelineDetailsView


@dataclass(frozen=True)
class LiveEvent:
    """An event as it is sent, and when it was made."""

    event: bytes
    made_at: float

    @classmethod
    def of(cls, name: str, data: ApiModel) -> "LiveEvent":
        return cls(encode_event(name, data), trio.current_time())

    @property
    def fresh(self) -> bool:
        return trio.current_time() - self.made_at < INTERVAL_SECONDS


class LiveEvents:
    """The newest events, each made at most once an interval for all clients together. No client has a queue."""

    def __init__(self) -> None:
        self._clients = 0
        self._fleet: LiveEvent | None = None
        self._pipelines: dict[str, LiveEvent] = {}

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

    def fleet(self, service: Service) -> bytes:
        """Every pipeline at a glance."""
        # Shared: with a hundred clients, an event for each would be most of the work of the server.
        if self._fleet is None or not self._fleet.fresh:
            data = FleetEvent(at=time.time(), pipelines=pipeline_views(service), problems=problem_views(service))
            self._fleet = LiveEvent.of("fleet", data)
        return self._fleet.event

    def pipeline(self, service: Service, id: str) -> bytes:
        """One pipeline with its nodes. Raises PipelineUnknown, also for one that is no more."""
        member, newest = service.fleet[id], self._pipelines.get(id)
        if newest is None or not newest.fresh:
            # Those that nobody watches any more are dropped here, so removed pipelines leave nothing behind.
            self._pipelines = {each: newest for each, newest in self._pipelines.items() if newest.fresh}
            view = pipeline_details_view(member, service.redaction)
            newest = self._pipelines[id] = LiveEvent.of("pipeline", PipelineEvent(at=time.time(), pipeline=view))
        return newest.event


async def _live_of(connection: HTTPConnection) -> LiveEvents:
    live = connection.app.state.live
    assert isinstance(live, LiveEvents)
    return live


@router.get(
    "",
    status_code=200,
    response_class=StreamingResponse,
    response_model=None,
    responses={
        **error_responses(404, 409),
        **event_response(
            "server-sent events `fleet`, at most two a second, whose data is a FleetEvent; with "
            "`pipeline` those come every two seconds, and between them `pipeline` events with its nodes"
        ),
    },
)
async def watch_fleet(
    service: InService,
    live: Annotated[LiveEvents, Depends(_live_of)],
    pipeline: Annotated[Id | None, Query(description="the pipeline whose nodes are wanted too")] = None,
) -> EventStream:
    """Every pipeline at a glance, again and again, until the client leaves or the server stops."""
    # Refused before the stream begins: afterwards there is no status code to refuse with.
    if live.full:
        raise LiveFull(f"{CLIENTS_MAX} clients watch already", suggestion="close a page, or ask for /api/v1/pipelines")
    if pipeline is None:
        return EventStream(live.client(), _fleet_events(live, service))
    live.pipeline(service, pipeline)  # so that an unknown one is refused before anything is sent
    return EventStream(live.client(), _pipeline_events(live, service, pipeline))


async def _fleet_events(live: LiveEvents, service: Service) -> AsyncIterator[bytes]:
    async for _ in _ticks(service):
        yield live.fleet(service)


async def _pipeline_events(live: LiveEvents, service: Service, id: str) -> AsyncIterator[bytes]:
    async for tick in _ticks(service):
        try:
            event = live.pipeline(service, id)
        except PipelineUnknown:
            return  # it was removed: the next request gets a 404
        yield event + live.fleet(service) if tick % FLEET_EVERY == 0 else event


async def _ticks(service: Service) -> AsyncIterator[int]:
    for tick in count():
        if service.closing.is_set():
            return
        yield tick
        # Waits for the end of the server, not just for time: streams would delay the shutdown otherwise.
        with trio.move_on_after(INTERVAL_SECONDS):
            await service.closing.wait()
