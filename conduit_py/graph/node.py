"""Node and Graph: a checked pipeline as a directed graph."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import networkx as nx

from conduit_py.owned_thread import is_coroutine_function
from conduit_py.pipeline import Destination, Pipeline, Processor, Source
from conduit_py.sdk.registry import connector_label

Kind: TypeAlias = Literal["source", "processor", "destination"]


@dataclass(frozen=True)
class Node:
    """A source, processor or destination of a pipeline, with the ids of its neighbours."""

    id: str
    kind: Kind
    declared: Source | Processor | Destination
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def stateful(self) -> bool:
        """True if it is a processor that keeps state."""
        plugin = self.declared.processor if isinstance(self.declared, Processor) else None
        return plugin is not None and plugin.stateful

    @property
    def keeps_all_in_memory(self) -> bool:
        """True if its state cannot be larger than memory: it is async, and does not name the keys that it needs."""
        plugin = self.declared.processor if isinstance(self.declared, Processor) else None
        if plugin is None or not plugin.stateful or plugin.names_state_keys:
            return False
        return is_coroutine_function(plugin.process_batch if plugin.by_batch else plugin.process)

    @property
    def defers(self) -> bool:
        """True if it is a processor that may defer records to the next transaction."""
        plugin = self.declared.processor if isinstance(self.declared, Processor) else None
        return plugin is not None and plugin.defers

    @property
    def collects(self) -> float:
        """How many seconds records wait for others before this processor; 0 if they do not."""
        return (self.declared.batch_seconds or 0.0) if isinstance(self.declared, Processor) else 0.0

    @property
    def label(self) -> str:
        """The name of its connector or processor."""
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
        """Return the destinations that a message at this node can still reach, as a bit set.

        Every destination has one vote on every message that can reach it. A node that filters or refuses a
        message casts the votes of all destinations behind it.
        """
        return self._votes[node]

    @cached_property
    def _votes(self) -> dict[str, int]:
        votes = {each.id: 1 << bit for bit, each in enumerate(self.destinations)}
        # A destination missing here would have no vote, and a message would count as done before it was written there.
        for node in reversed(list(nx.topological_sort(self.digraph))):
            for following in self.digraph.successors(node):
                votes[node] = votes.get(node, 0) | votes[following]
            votes.setdefault(node, 0)
        return votes


def stateful_processors(graph: Graph) -> list[str]:
    """Return the ids of the processors that keep state."""
    return [node.id for node in graph.nodes.values() if node.stateful]


def deferring_processors(graph: Graph) -> list[str]:
    """Return the ids of the processors that may defer records to the next transaction."""
    return [node.id for node in graph.nodes.values() if node.defers]


def sources_above(graph: Graph, node: str) -> list[Node]:
    """Return the sources whose records reach a node."""
    above = nx.ancestors(graph.digraph, node)
    return [source for source in graph.sources if source.id in above]
