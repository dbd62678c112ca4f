"""Taps over HTTP: the records before and after a node of a running pipeline, as server-sent events."""

import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import trio
from fastapi import APIRouter, Depends, Path, Query
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse
from pydantic import Field

from conduit_py.defaults import TAP_LIMIT_MAX, TAP_RATE, TAP_RATE_MAX
from conduit_py.errors import FleetError, PipelineUnknown
from conduit_py.inspect.tap import Outcome, Sample, Tap
from conduit_py.lifecycle.fleet import Member
from conduit_py.pipeline_settings import ConditionText, NodeId
from conduit_py.sdk.template import TemplateInvalid, condition_of
from conduit_py.server.access import AskedBy
from conduit_py.server.errors import error_responses
from conduit_py.server.live import EventStream, encode_event, event_response
from conduit_py.server.pipelines import PipelineId
from conduit_py.server.service import InService, Service
from conduit_py.server.views import ApiModel

log = logging.getLogger("conduit_py.server")

router = APIRouter(prefix="/api/v1/pipelines/{id}/nodes/{node}/tap", tags=["taps"])

TAPS_MAX = 20
LOOK_SECONDS = 0.5
"""How often a stream checks whether it must end."""
QUIET_SECONDS = 10.0
"""After so long without an event a comment is sent, or a proxy might close the connection as idle."""

Node = Annotated[NodeId, Path(description="the id of a source, processor or destination of the pipeline")]
Rate = Annotated[int, Query(ge=1, le=TAP_RATE_MAX, description="the most records a second")]
Limit = Annotated[int | None, Query(ge=1, le=TAP_LIMIT_MAX, description="end after so many records")]
When = Annotated[
    ConditionText | None, Query(description="only records for which this is true, such as payload.amount > 10")
]


class TapsFull(FleetError):
    """The server has as many open taps as it allows."""

    code = "tap.full"


class TapImpossible(FleetError):
    """The records of the pipeline do not pass through this server."""

    code = "tap.impossible"


class MessageView(ApiModel):
    """The identity of a message, the same at every node, and its position in the source."""

    source: str
    sequence: int
    piece: list[int]
    position: str = Field(description="in base64")


class RecordEvent(ApiModel):
    """The data of an event `record`. Records are in their JSON form, without secrets."""

    at: float
    message: MessageView
    before: dict[str, Any] | None = Field(description="as it came to the node; null at a source")
    after: list[dict[str, Any]] | None = Field(description="what it became; null when it ended here")
    outcome: Outcome
    error: str | None
    pieces: int = Field(description="how many records it became; of very many only the first are in `after`")
    cut: list[str] = Field(description="the paths of what is too long to be shown whole")
    skipped: int = Field(description="how many records passed since the one before and were not sampled")
    source_schema: dict[str, Any] | None = Field(
        description="the collection, version and fields that its source announced, if they are new to this stream"
    )


class DroppedEvent(ApiModel):
    """The data of an event `dropped`: records that were sampled since the last one, but not read in time."""

    count: int


class TapCount:
    """Counts the taps of a server."""

    def __init__(self) -> None:
        self._count = 0

    @property
    def full(self) -> bool:
        return self._count >= TAPS_MAX

    @contextmanager
    def attach(self, member: Member, node: str, tap: Tap) -> Iterator[None]:
        self._count += 1
        try:
            with member.taps.attach(node, tap):
                yield
        finally:
            self._count -= 1


async def _taps_of(connection: HTTPConnection) -> TapCount:
    taps = connection.app.state.taps
    assert isinstance(taps, TapCount)
    return taps


@router.get(
    "",
    status_code=200,
    response_class=StreamingResponse,
    response_model=None,
    responses={
        **error_responses(404, 409),
        **event_response(
            "server-sent events `record`, whose data is a RecordEvent, and `dropped`, whose data is a DroppedEvent"
        ),
    },
)
async def tap_node(
    service: InService,
    taps: Annotated[TapCount, Depends(_taps_of)],
    asked_by: AskedBy,
    id: PipelineId,
    node: Node,
    rate: Rate = TAP_RATE,
    limit: Limit = None,
    when: When = None,
) -> EventStream:
    """Records before and after a node, sampled, until the limit, the client or the server ends it.

    Also over restarts of the pipeline, and before it is started. The pipeline never waits for the client.
    """
    member = service.fleet[id]
    if node not in member.graph.nodes:
        known = ", ".join(member.graph.nodes)
        raise PipelineUnknown(f"pipeline {id!r} has no node {node!r}", suggestion=f"nodes are {known}")
    # Its records are on executors; a tap here would stay silent, which looks like no traffic.
    if member.pipeline.spark is not None:
        what = f"pipeline {id!r} runs on Spark, whose executors hold its records: a tap here cannot see them"
        raise TapImpossible(what, suggestion='try it on the engine "trio" first')
    if taps.full:
        raise TapsFull(f"{TAPS_MAX} taps are open already, which is the most", suggestion="close one of them first")
    log.info("pipeline %s: %s is tapped (asked by %s)", id, node, asked_by)
    try:
        condition = None if when is None else condition_of(when)
    except TemplateInvalid as invalid:
        raise TapImpossible(f"when: {invalid.describe(when or '')}", suggestion=invalid.suggestion) from None
    tap = Tap(rate=rate, limit=limit, redact=service.redaction, when=condition)
    return EventStream(taps.attach(member, node, tap), _events(service, member, tap))


async def _events(service: Service, member: Member, tap: Tap) -> AsyncIterator[bytes]:
    # Sent at once: a client may start the pipeline when it has seen that the tap is attached.
    yield b": attached\n\n"
    reported, quiet_since = 0, trio.current_time()
    while not service.closing.is_set() and _here(service, member):
        sample = None
        # A limit on the wait: a node without traffic would otherwise keep a stream open past the end of the server.
        with trio.move_on_after(LOOK_SECONDS):
            sample = await tap.receive()
        if tap.dropped > reported:
            yield encode_event("dropped", DroppedEvent(count=tap.dropped - reported))
            reported, quiet_since = tap.dropped, trio.current_time()
        if sample is not None:
            yield encode_event("record", record_event(sample))
            quiet_since = trio.current_time()
        elif tap.spent:
            return
        elif trio.current_time() - quiet_since >= QUIET_SECONDS:
            yield b": quiet\n\n"
            quiet_since = trio.current_time()


def _here(service: Service, member: Member) -> bool:
    # By identity: a pipeline that was removed and added again has the id, but none of the taps. One that has moved to
    # Spark has its records on executors.
    return member.pipeline.spark is None and any(each is member for each in service.fleet)


def record_event(sample: Sample) -> RecordEvent:
    message = MessageView(
        source=sample.message.source,
        sequence=sample.message.sequence,
        piece=list(sample.message.piece),
        position=b64encode(sample.position).decode(),
    )
    fields = {name: getattr(sample, name) for name in RecordEvent.model_fields if name != "message"}
    return RecordEvent(message=message, **fields)
