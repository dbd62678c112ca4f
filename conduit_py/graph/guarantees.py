"""Guarantees: how often the records of each source arrive at each destination, in which order, and why."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
import networkx as nx

from conduit_py import sdk
from conduit_py.graph.node import Graph, Node
from conduit_py.pipeline import Destination, Source
from conduit_py.sdk.destination import ManyWriterDestination, TransactionalDestination, WriteGuarantee
from conduit_py.sdk.endpoint import EndpointSource
from conduit_py.sdk.source import KeptOrder

Promise: TypeAlias = Literal["exactly once", "effectively once", "at least once", "at most once", "best effort"]


class Guarantee(msgspec.Struct, frozen=True):
    """What holds for the records of one source at one destination, whatever crashes."""

    source: str
    destination: str
    promise: Promise
    order: str
    """Which records arrive in order; between two sources there is never an order."""
    why: str


def guarantees(graph: Graph) -> list[Guarantee]:
    """Return one for every destination that a source reaches, in graph order, then one for every outbox target."""
    # One search for each source: one for each pair would take minutes in a graph of some thousand connectors.
    reached = {source.id: nx.descendants(graph.digraph, source.id) for source in graph.sources}
    pairs = [
        (source, destination)
        for source in graph.sources
        for destination in graph.destinations
        if destination.id in reached[source.id]
    ]
    promised = [_guarantee(source, at, *_promise(graph, source, at)) for source, at in pairs]
    return promised + [_outbox_guarantee(target, graph) for target in graph.pipeline.outbox]


def _guarantee(source: Node, at: Node, promise: Promise, why: str) -> Guarantee:
    # Whatever runs between the two keeps the order of `read`, so only the ends say less.
    order = _order(_source(source).order, _destination(at).order)
    return Guarantee(source.id, at.id, promise, order, why)


def _order(read: KeptOrder, written: KeptOrder) -> str:
    if KeptOrder.NOTHING in (read, written):
        return "in no order"
    # Each once: a topic that is copied to another keeps the order of what shares a partition in both.
    parts = [each.value for each in dict.fromkeys((read, written)) if each is not KeptOrder.EVERYTHING]
    return f"in order for each {' and '.join(parts)}" if parts else "in order"


def _outbox_guarantee(target: str, graph: Graph) -> Guarantee:
    promise, why = _outbox_promise(target, graph)
    order = _order(KeptOrder.EVERYTHING, graph.pipeline.outbox[target].order)
    return Guarantee("outbox", target, promise, order, why)


def _outbox_promise(target: str, graph: Graph) -> tuple[Promise, str]:
    """Return what holds for the records that processors publish to a target of the outbox."""
    committed = "what is published is committed with the records, and sent after that, in order"
    if graph.pipeline.outbox[target].guarantee is WriteGuarantee.IDEMPOTENT:
        return "effectively once", f"{committed}; {target} recognises a repeated record by its delivery key"
    return "at least once", f"{committed}, again if a crash leaves it unknown whether it arrived"


def _promise(graph: Graph, source: Node, at: Node) -> tuple[Promise, str]:
    reading, writing = _source(source), _destination(at)
    delivery = graph.pipeline.delivery
    if delivery == "at_most_once":
        return "at most once", "progress is saved before a record is sent, so a crash loses the records in flight"
    if isinstance(reading, EndpointSource) and not reading.drops_repeats:
        what = f"{source.id} answers when a record is durable, and its clients send again what was not answered"
        return "at least once", f"{what}; without a key it cannot recognise what it has already"
    # Before exactly_once: no commit can make up for a source that cannot resume.
    if not reading.resumable:
        what = f"{source.id} cannot resume from a position"
        return "best effort", f"{what}: a crash loses the records in flight, and what the source repeats arrives again"
    if delivery == "exactly_once":
        if reading.others_may_repeat:
            what = f"if this process is killed, another member of its group repeats what {source.id} read last"
            return "at least once", f"{what}: read given partitions, or restart it before the group gives it up"
        return "exactly once", _exactly_once(graph, at, writing)
    if writing.guarantee is WriteGuarantee.IDEMPOTENT and reading.repeatable:
        return "effectively once", f"{at.id} recognises a record that is repeated after a crash by its delivery key"
    again = "records in flight are sent again after a crash"
    if not reading.repeatable:
        return (
            "at least once",
            f"{again}, with other delivery keys: {source.id} reads in another order each time",
        )
    if writing.guarantee is WriteGuarantee.AT_LEAST_ONCE:
        return "at least once", f"{again}, with the same delivery key"
    return "at least once", f'{again}; {at.id} can do better with delivery="exactly_once"'


def _exactly_once(graph: Graph, at: Node, writing: sdk.DestinationConnector[Any]) -> str:
    if writing.guarantee is WriteGuarantee.IDEMPOTENT:
        return f"{at.id} recognises a record that is repeated after a crash by its delivery key"
    if at.id == committing_destination(graph):
        return f"{at.id} commits records and progress in one transaction of its own"
    if graph.pipeline.spark is not None and isinstance(writing, ManyWriterDestination):
        return f"{at.id} shows what was staged for a transaction, by any process, once it is committed"
    return f"{at.id} stages records and applies them once the transaction is committed"


def committing_destination(graph: Graph) -> str | None:
    """The destination whose commit is the commit of an exactly-once pipeline, if one can do that."""
    connector = graph.pipeline.dead_letters.policy.connector
    others = [connector] if connector is not None else []
    return choose_committing_destination({node.id: _destination(node) for node in graph.destinations}, others)


def choose_committing_destination(
    destinations: Mapping[str, sdk.DestinationConnector[Any]], others: Iterable[sdk.DestinationConnector[Any]] = ()
) -> str | None:
    """The first that can carry the commit without blocking another one, if any can; `others` stage beside them.

    Its transaction is open while records are written. Another destination that needs the same lock would wait for a
    commit that waits for it. Then all of them stage.
    """
    everyone = [*destinations.values(), *others]
    for node, connector in destinations.items():
        if isinstance(connector, TransactionalDestination):
            lock = connector.locks
            if lock is None or sum(_lock(each) == lock for each in everyone) == 1:
                return node
    return None


def _lock(connector: sdk.DestinationConnector[Any]) -> str | None:
    return connector.locks if isinstance(connector, TransactionalDestination) else None


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
