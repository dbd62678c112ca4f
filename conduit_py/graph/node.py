"""Node and Graph: a pipeline as a directed graph that is known to be sound."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import networkx as nx

from conduit_py.pipeline import Destination, Pipeline, Processor, Source
from conduit_py.sdk.plugin import connector_label

Kind: TypeAlias = Literal["source", "processor", "destination"]


@dataclass(frozen=True)
class Node:
    """One thing a batch meets, with the ids of its neighbours."""

    id: str
    kind: Kind
    declared: Source | Processor | Destination
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def stateful(self) -> bool:
        """Whether it is a processor that keeps state."""
        plugin = self.declared.processor if isinstance(self.declared, Processor) else None
        return plugin is not None and plugin.stateful

    @property
    def defers(self) -> bool:
        """Whether it is a processor that may defer records to the next transaction."""
        plugin = self.declared.processor if isinstance(self.declared, Processor) else None
        return plugin is not None and plugin.defers

    @property
    def label(self) -> str:
        """What does the work: the connector's or the processor's own name."""
        if isinstance(self.declared, Processor):
            plugin = self.declared.processor
            return getattr(plugin, "name", type(plugin).__name__)
        return connector_label(self.declared.connector)


@dataclass(frozen=True)
class Graph:
    """A checked pipeline: a DAG in which every source reaches a destination, and each by one path only."""

    pipeline: Pipeline
    digraph: "nx.DiGraph[str]"
    nodes: dict[str, Node]
    """In topological order."""

    @property
    def sources(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == "source"]

    @property
    def destinations(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == "destination"]

    def votes(self, node: str) -> int:
        """Which destinations a message at this node is still to reach, as a bit set.

        Every destination has one vote on every message that can reach it: a node that ends a message
        (filters or refuses it) casts the votes of all destinations behind it.
        """
        reachable = nx.descendants(self.digraph, node) | {node}
        return sum(1 << bit for bit, each in enumerate(self.destinations) if each.id in reachable)


def stateful_processors(graph: Graph) -> list[str]:
    """The processors that keep state."""
    return [node.id for node in graph.nodes.values() if node.stateful]


def deferring_processors(graph: Graph) -> list[str]:
    """The processors that may defer records to the next transaction."""
    return [node.id for node in graph.nodes.values() if node.defers]
