"""Topology: which step feeds which, the queues between them left out."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx

from conduit_py.delivery.steps.step import Kind, Step


def topology(steps: Iterable[Step]) -> "nx.DiGraph[str]":
    """The steps as a graph: an edge for every queue that one writes and another reads."""
    steps = list(steps)
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(step.id for step in steps)
    writers = [(step.id, _written(step)) for step in steps]
    readers = [(step.id, {*step.bindings.values(), *step.tailers.values()}) for step in steps]
    digraph.add_edges_from(
        (writer, reader) for writer, written in writers for reader, read in readers if written & read
    )
    return digraph


def _written(step: Step) -> set[str]:
    return {step.id} if step.kind is Kind.SOURCE else {*step.outputs.values(), *step.appenders.values()}


def isomorphic(these: Iterable[Step], those: Iterable[Step]) -> bool:
    """Whether two graphs do the same steps in the same order, whatever their queues are called."""
    one, other = topology(these), topology(those)
    return set(one.nodes) == set(other.nodes) and set(one.edges) == set(other.edges)


def shaped(shape: Any) -> "nx.DiGraph[Hashable]":
    """A graph from its drawing: a list is a pipeline, a set is side by side, a map is edges, None is nothing."""
    digraph: nx.DiGraph[Hashable] = nx.DiGraph()
    _draw(digraph, shape)
    return digraph


def inward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """The nodes that nothing feeds."""
    return {node for node, degree in digraph.in_degree() if degree == 0}


def outward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """The nodes that feed nothing."""
    return {node for node, degree in digraph.out_degree() if degree == 0}


def _draw(digraph: "nx.DiGraph[Hashable]", shape: Any) -> "nx.DiGraph[Hashable]":
    """Add the shape; gives it by itself, so that a pipeline knows its ends."""
    part: nx.DiGraph[Hashable] = nx.DiGraph()
    if isinstance(shape, Mapping):
        for before, after in shape.items():
            _draw(part, [_thawed(before), after])
    elif isinstance(shape, set | frozenset):
        for each in shape:
            _draw(part, _thawed(each))
    elif isinstance(shape, Sequence) and not isinstance(shape, str):
        parts = [_draw(part, each) for each in shape if each is not None]
        for before, after in pairwise(parts):
            part.add_edges_from((left, right) for left in outward(before) for right in inward(after))
    elif shape is not None:
        part.add_node(shape)
    digraph.update(part.edges, part.nodes)
    return part


def _thawed(shape: Any) -> Any:
    """A pipeline within a set or before an arrow is written as a tuple, which may stand there."""
    return list(shape) if isinstance(shape, tuple) else shape
