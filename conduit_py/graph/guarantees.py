"""Guarantees: what a pipeline promises about the records of each source at each destination, and why."""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
import networkx as nx

from conduit_py import sdk
from conduit_py.errors import Problem
from conduit_py.graph.committing_destination import choose_committing_destination
from conduit_py.graph.node import Graph, Node
from conduit_py.pipeline import Destination, Pipeline, Processor, Source
from conduit_py.sdk.destination import WriteGuarantee
from conduit_py.sdk.plugin import connector_label

Promise: TypeAlias = Literal["exactly once", "effectively once", "at least once", "at most once", "best effort"]

_ELSE = 'or take delivery="at_least_once"'
_KINDS = (
    "use one that stages (file, journal), one that keeps the checkpoint with its data (sqlite, postgres) or one that "
    f"is idempotent by delivery key, {_ELSE}"
)


class Guarantee(msgspec.Struct, frozen=True):
    """What holds for the records of one source at one destination, whatever crashes."""

    source: str
    destination: str
    promise: Promise
    why: str


def guarantees(graph: Graph) -> list[Guarantee]:
    """One for every destination that a source reaches, in the order of the graph, then one for every outbox target."""
    pairs = [
        (source, destination)
        for source in graph.sources
        for destination in graph.destinations
        if nx.has_path(graph.digraph, source.id, destination.id)
    ]
    promised = [Guarantee(source.id, at.id, *_promise(graph, source, at)) for source, at in pairs]
    return promised + [Guarantee("outbox", target, *_outbox_promise(target, graph)) for target in graph.pipeline.outbox]


def _outbox_promise(target: str, graph: Graph) -> tuple[Promise, str]:
    """What holds for the records that processors publish to a target of the outbox."""
    committed = "what is published is committed with the records, and sent after that, in order"
    if graph.pipeline.outbox[target].guarantee is WriteGuarantee.IDEMPOTENT:
        return "effectively once", f"{committed}; {target} knows a record that arrives again by its delivery key"
    return "at least once", f"{committed}, again if a crash leaves it unknown whether it arrived"


def _promise(graph: Graph, source: Node, at: Node) -> tuple[Promise, str]:
    reading, writing = _source(source), _destination(at)
    delivery = graph.pipeline.delivery
    if delivery == "at_most_once":
        return "at most once", "progress is saved before a record sets out, so a crash loses what was on its way"
    if not reading.resumable:
        what = f"{source.id} cannot go on where it was"
        return "best effort", f"{what}: what was on its way in a crash is lost, and what it repeats arrives again"
    if delivery == "exactly_once":
        return "exactly once", _exactly_once(graph, at, writing)
    if writing.guarantee is WriteGuarantee.IDEMPOTENT:
        return "effectively once", f"{at.id} knows a record that arrives again after a crash by its delivery key"
    again = "what was on its way in a crash arrives again"
    if writing.guarantee is WriteGuarantee.AT_LEAST_ONCE:
        return "at least once", f"{again}, with the same delivery key"
    return "at least once", f'{again}; {at.id} can do better with delivery="exactly_once"'


def _exactly_once(graph: Graph, at: Node, writing: sdk.DestinationConnector[Any]) -> str:
    if writing.guarantee is WriteGuarantee.IDEMPOTENT:
        return f"{at.id} knows a record that arrives again after a crash by its delivery key"
    if at.id == committing_destination(graph):
        return f"{at.id} commits records and progress in one transaction of its own"
    return f"{at.id} stages records and shows them once the transaction is committed"


def committing_destination(graph: Graph) -> str | None:
    """The destination whose commit is the commit of an exactly-once pipeline, if one can do that."""
    connector = graph.pipeline.dead_letters.policy.connector
    others = [connector] if connector is not None else []
    return choose_committing_destination({node.id: _destination(node) for node in graph.destinations}, others)


def delivery_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Everything in a pipeline that does not go with the delivery it asks for, each by name."""
    if pipeline.delivery == "exactly_once":
        yield from _not_exactly_once(pipeline)
    else:
        for name, said in (("transaction", pipeline.settings.transaction), ("outbox", pipeline.outbox or None)):
            if said is not None:
                yield _problem(pipeline, name, "has a meaning only in an exactly-once pipeline", f"remove it, {_XO}")
    if pipeline.delivery == "at_most_once" and not pipeline.dead_letters.policy.discards:
        yield _problem(pipeline, "dead_letters", "at_most_once drops refused records", 'use DeadLetters("drop")')
    yield from _state_problems(pipeline)


_XO = 'or take delivery="exactly_once"'


def _not_exactly_once(pipeline: Pipeline) -> Iterator[Problem]:
    for source in pipeline.sources:
        if source.connector is not None and not source.connector.resumable:
            what = f"{connector_label(source.connector)} cannot go on from a position, which exactly_once needs"
            hint = f"write what it gives into a journal first and read that, {_ELSE}"
            yield _problem(source, f"sources.{source.id}", what, hint)
    for destination in pipeline.destinations:
        if destination.connector is not None:
            yield from _not_once_into(destination)
    yield from _letters_problems(pipeline)


def _not_once_into(destination: Destination) -> Iterator[Problem]:
    path, connector = f"destinations.{destination.id}", destination.connector
    if connector.guarantee is WriteGuarantee.AT_LEAST_ONCE:
        what = f"{connector_label(connector)} would write records again after a crash, which exactly_once rules out"
        yield _problem(destination, path, what, _KINDS)
    elif connector.guarantee is not WriteGuarantee.IDEMPOTENT and destination.retry.attempts > 1:
        what = "a write that fails ends the transaction, which is tried again as a whole"
        yield _problem(
            destination, f"{path}.retry", what, "remove it; recovery=Recovery(…) of the pipeline tries again"
        )


def _letters_problems(pipeline: Pipeline) -> Iterator[Problem]:
    policy = pipeline.dead_letters.policy
    if policy.repeats_after_crash is not None:
        instead = _KINDS if policy.connector is not None else f'use "drop" or a destination: {_KINDS}'
        what = f"{policy.repeats_after_crash}, which exactly_once rules out"
        yield _problem(pipeline, "dead_letters.handler", what, instead)


def stateful_processors(graph: Graph) -> list[str]:
    """The processors that keep state."""
    return [
        node.id
        for node in graph.nodes.values()
        if isinstance(node.declared, Processor) and node.declared.processor and node.declared.processor.stateful
    ]


def _state_problems(pipeline: Pipeline) -> Iterator[Problem]:
    owners: list[tuple[str, list[Processor]]] = [("processors", pipeline.processors)]
    owners += [(f"sources.{each.id}.processors", each.processors) for each in pipeline.sources]
    owners += [(f"destinations.{each.id}.processors", each.processors) for each in pipeline.destinations]
    for prefix, processors in owners:
        for processor in processors:
            if processor.processor is None or not processor.processor.stateful:
                continue
            path = f"{prefix}.{processor.id}"
            if pipeline.delivery != "exactly_once":
                what = "keeps state, which is right after a crash only if it commits with the records"
                yield _problem(processor, path, what, 'take delivery="exactly_once"')
            if processor.workers > 1:
                what = f"keeps state, which {processor.workers} workers would change in no order"
                yield _problem(processor, f"{path}.workers", what, "use one worker")


def _problem(
    declared: Pipeline | Source | Destination | Processor, path: str, message: str, suggestion: str
) -> Problem:
    return Problem(path, message, suggestion, *(declared.place or (None, None)))


def _source(node: Node) -> sdk.SourceConnector[Any]:
    assert isinstance(node.declared, Source)
    connector: sdk.SourceConnector[Any] | None = node.declared.connector
    assert connector is not None
    return connector


def _destination(node: Node) -> sdk.DestinationConnector[Any]:
    assert isinstance(node.declared, Destination)
    connector: sdk.DestinationConnector[Any] | None = node.declared.connector
    assert connector is not None
    return connector
