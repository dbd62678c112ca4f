"""Views: what the API shows. Options are in none of them, and texts that may quote a secret are redacted."""

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from conduit_py.child.supervisor import process_of
from conduit_py.errors import Problem
from conduit_py.graph.guarantees import Promise, guarantees
from conduit_py.graph.node import Node
from conduit_py.lifecycle.fleet import Member
from conduit_py.lifecycle.pipeline_log import LoggedEvent
from conduit_py.lifecycle.supervisor import channel_size
from conduit_py.pipeline import DeadLetters, Source
from conduit_py.pipeline_settings import Delivery, EngineName
from conduit_py.sdk.source import SourceConnector
from conduit_py.server.service import Redaction
from conduit_py.status import Status, Stopper
from conduit_py.stream.meter import Histogram, Meter, NodeKind, Progress


class ApiModel(BaseModel):
    """Base of all views and requests; immutable."""

    model_config = ConfigDict(frozen=True)


class HistogramView(ApiModel):
    """How durations are spread: `counts[i]` were at most `bounds[i]` seconds, the last one above every bound."""

    bounds: list[float]
    counts: list[int]
    total: float


class ErrorView(ApiModel):
    """The first error of the last run that failed."""

    code: str
    message: str
    node: str | None
    suggestion: str | None
    at: float = Field(description="seconds since 1970")


class ProgressView(ApiModel):
    """What a pipeline has done since it was last started in this process."""

    elapsed_seconds: float
    read: int
    acked: int
    filtered: int
    dead_letters: int
    in_flight: int
    blocked_on: str | None = Field(description="what holds the pipeline up, as node: reason")
    recoveries: int = Field(description="how often it was started again after an error")
    stalled_seconds: float = Field(description="for how long some source has had records to settle and settled none")


class DefinitionView(ApiModel):
    """A problem in a definition, and where it is."""

    message: str
    path: str
    file: str | None
    line: int | None
    suggestion: str | None


class EventView(ApiModel):
    """Something that happened to a pipeline, as the log says it. Equal failures in a row are one event, the last."""

    at: float = Field(description="seconds since 1970")
    event: str
    level: Literal["info", "warning", "error"]
    text: str


class PipelineView(ApiModel):
    """A pipeline at a glance."""

    id: str
    description: str
    status: Status
    stopped_by: Stopper | None
    error: ErrorView | None
    since: float = Field(description="since when it has this status, in seconds since 1970")
    next_run: float | None = Field(description="when a pipeline with a schedule runs next, in seconds since 1970")
    engine: EngineName = Field(description="what it runs on: this server, or the executors of a Spark")
    spark_master: str | None = Field(description="the Spark that its definition names, if it does")
    process: int | None = Field(description="which of the processes of `serve --processes` runs it; else null")
    progress: ProgressView | None
    definition: DefinitionView | None = Field(description="what is wrong with its newest definition, if not in effect")


class PipelinesView(ApiModel):
    """Every pipeline of the server, and what is wrong with its files."""

    pipelines: list[PipelineView]
    problems: list[DefinitionView] = Field(description="what keeps definitions in the files from taking effect")


class LagView(ApiModel):
    """How much a source has still to read, in the units that it counts in."""

    records: int | None
    bytes: int | None
    seconds: float | None
    retained_bytes: int | None = Field(description="what the system keeps until the source has read it")
    partitions: dict[str, int] = Field(description="the unread records of each partition")


class TallyView(ApiModel):
    """What a source over a shared queue has counted; `held` is how many leases it keeps now."""

    held: int
    extended: int
    lost: int
    taken_over: int = Field(description="pieces of work that another process had begun and left")
    duplicates: int = Field(description="messages whose work was done, or begun, already")
    unreadable: int
    failed: int = Field(description="objects that could not be opened or read")


class StateView(ApiModel):
    """What a processor remembers, and up to when, by the time of its records, it has everything."""

    keys: int
    bytes: int
    watermark: float | None


class NodeView(ApiModel):
    """A node of a pipeline, its neighbours and its counters; those are 0 before the first run in this process."""

    id: str
    kind: NodeKind
    label: str
    inputs: list[str]
    outputs: list[str]
    records: int
    batches: int
    filtered: int
    refused: int
    acked: int
    retries: int
    in_flight: int
    window: int
    queued: int = Field(description="batches that wait in the channel before it, of at most queue_size")
    queue_size: int
    oldest_seconds: float = Field(description="how long ago a source read the oldest record that is not settled")
    lag: LagView | None = Field(description="of a source that runs and can say so")
    tally: TallyView | None = Field(description="of a source over a queue that several workers share")
    state: StateView | None = Field(description="of a processor with state that runs")
    takes_snapshots: bool = Field(description="whether it is a source that reads a collection as a whole on request")
    waiting_on: str | None
    calls: HistogramView = Field(description="how long its calls took: for a batch, a write, a dead letter")
    settling: HistogramView = Field(description="how long the records of a source took from read to acked")


class DeadLettersView(ApiModel):
    """What becomes of refused records, and how many there were."""

    handler: str
    window_size: int
    window_nack_threshold: int
    records: int


class GuaranteeView(ApiModel):
    """What holds for the records of one source at one destination, whatever crashes, and why."""

    source: str
    destination: str
    promise: Promise
    order: str
    why: str


class PipelineDetailsView(PipelineView):
    """A pipeline with its graph."""

    nodes: list[NodeView]
    edges: list[tuple[str, str]]
    delivery: Delivery
    guarantees: list[GuaranteeView]
    dead_letters: DeadLettersView
    events: list[EventView] = Field(description="the last events since the server was started, the oldest first")


class AcceptedView(ApiModel):
    """A command was accepted; the status says when it is done."""

    id: str
    status: Status


class SnapshotView(ApiModel):
    """A source has taken a request for a snapshot."""

    source: str
    collection: str
    durable: bool = Field(
        description="true if the request survives a crash; false if that is not so yet, because what was read before "
        "it is not delivered: if the run ends before that, the request must be repeated"
    )


class PositionsView(ApiModel):
    """From where each source goes on, in base64; null is the beginning."""

    positions: dict[str, str | None]


class PointView(ApiModel):
    """A position that was durable at a time."""

    at: float = Field(description="seconds since 1970")
    position: str | None = Field(description="in base64; null is the beginning")
    start: bool = Field(description="whether a run of the pipeline began here")


class HistoryView(ApiModel):
    """Where a source has been, the oldest point first: the older, the fewer."""

    points: list[PointView]


class PositionReplayView(PositionsView):
    """From where each source goes on now, and the point that was gone back to; null is the beginning."""

    point: PointView | None


class PluginView(ApiModel):
    """A connector or processor that is installed."""

    kind: Literal["source", "destination", "processor"]
    name: str
    summary: str
    available: bool = Field(description="whether everything that it needs is installed")


class PluginDetailsView(PluginView):
    """A plugin with the JSON schema of its options."""

    options: dict[str, Any]


def pipeline_view(member: Member, redaction: Redaction) -> PipelineView:
    return PipelineView(**_glance(member, member.progress(), redaction))


def definition_view(problem: Problem, redaction: Redaction) -> DefinitionView:
    return DefinitionView(
        message=redaction(problem.message),
        path=problem.path,
        file=problem.file,
        line=problem.line,
        suggestion=problem.suggestion and redaction(problem.suggestion),
    )


def pipeline_details_view(member: Member, redaction: Redaction) -> PipelineDetailsView:
    """A pipeline with its nodes and edges as the API shows it."""
    progress = member.progress()
    meters = {meter.node: meter for meter in progress.nodes} if progress else {}
    refused = sum(meter.records for meter in meters.values() if meter.kind == "dead_letters")
    queue_size = channel_size(member.pipeline.delivery)
    return PipelineDetailsView(
        **_glance(member, progress, redaction),
        nodes=[_node_view(node, meters.get(node.id), queue_size) for node in member.graph.nodes.values()],
        edges=[(node.id, output) for node in member.graph.nodes.values() for output in node.outputs],
        delivery=member.pipeline.delivery,
        guarantees=[GuaranteeView(**msgspec.structs.asdict(each)) for each in guarantees(member.graph)],
        dead_letters=_dead_letters_view(member.pipeline.dead_letters, refused),
        events=[_event_view(each, redaction) for each in member.log.events],
    )


def _event_view(event: LoggedEvent, redaction: Redaction) -> EventView:
    return EventView(**{**msgspec.structs.asdict(event), "text": redaction(event.text)})


def _glance(member: Member, progress: Progress | None, redaction: Redaction) -> dict[str, Any]:
    state, error = member.state, member.state.error
    return {
        "id": member.pipeline.id,
        # A description is written by hand, and people paste connection strings into it.
        "description": redaction(member.pipeline.settings.description),
        "status": state.status,
        "stopped_by": state.stopped_by,
        "error": error
        and ErrorView(
            code=error.code,
            message=redaction(error.message),
            node=error.node,
            suggestion=error.suggestion and redaction(error.suggestion),
            at=error.at,
        ),
        "since": state.since,
        "next_run": state.next_run,
        "engine": "trio" if member.pipeline.spark is None else "spark",
        "spark_master": member.pipeline.spark and member.pipeline.spark.master,
        "process": process_of(member.supervisor),
        "progress": progress and ProgressView(**{name: getattr(progress, name) for name in ProgressView.model_fields}),
        "definition": None if member.definition is None else definition_view(member.definition, redaction),
    }


def _node_view(node: Node, meter: Meter | None, queue_size: int) -> NodeView:
    # Before the first run a node has no meter; zeros keep the shape of the answer the same.
    meter = meter or Meter(node.id, node.kind)
    # By name: a counter added to Meter and NodeView appears without a third list to keep in step.
    counters = {name: getattr(meter, name) for name in NodeView.model_fields if hasattr(meter, name)}
    histograms = {name: _histogram_view(getattr(meter, name)) for name in ("calls", "settling")}
    lag = meter.lag and LagView(**msgspec.structs.asdict(meter.lag))
    return NodeView(
        **{
            **counters,
            **histograms,
            "lag": lag,
            "state": meter.state and StateView(**meter.state._asdict()),
            "tally": meter.queue_counts and TallyView(**msgspec.structs.asdict(meter.queue_counts)),
            "id": node.id,
            "kind": node.kind,
            "label": node.label,
            "inputs": node.inputs,
            "takes_snapshots": _takes_snapshots(node),
        },
        outputs=node.outputs,
        queue_size=queue_size,
    )


def _takes_snapshots(node: Node) -> bool:
    connector = node.declared.connector if isinstance(node.declared, Source) else None
    return connector is not None and type(connector.declared).request_snapshot is not SourceConnector.request_snapshot


def _histogram_view(histogram: Histogram) -> HistogramView:
    return HistogramView(bounds=list(histogram.bounds), counts=histogram.counts, total=histogram.total)


def _dead_letters_view(dead_letters: DeadLetters, records: int) -> DeadLettersView:
    given = dead_letters.settings
    limits = {"window_size": given.window_size or 0, "window_nack_threshold": given.window_nack_threshold}
    return DeadLettersView(handler=dead_letters.policy.label, records=records, **limits)
