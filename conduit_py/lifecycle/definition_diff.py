"""diff_definitions: what a new definition of a pipeline changes, and whether it needs a restart for that."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from conduit_py.graph.node import Graph, Node
from conduit_py.lifecycle.definition_equality import definitions_equal


@dataclass(frozen=True)
class DefinitionDiff:
    """How a definition differs from the one before it."""

    processors: frozenset[str] = frozenset()
    """The nodes whose processors differ; they can be swapped while the pipeline runs."""
    description: bool = False
    """Whether the description differs, which needs no action."""
    restart_reason: str | None = None
    """What else differs, if anything: the pipeline must be restarted for it."""

    def __bool__(self) -> bool:
        return bool(self.processors) or self.description or self.restart_reason is not None


def diff_definitions(old: Graph, new: Graph) -> DefinitionDiff:
    """Compare two definitions of one pipeline."""
    if _shape(old) != _shape(new):
        return DefinitionDiff(restart_reason="the graph")
    if not definitions_equal(_settings(old), _settings(new)):
        return DefinitionDiff(restart_reason="the settings")
    changed = set()
    for id, node in new.nodes.items():
        # Not by `==`: loading a file again creates other functions and classes that do the same.
        if not definitions_equal(_node(old.nodes[id]), _node(node)):
            if node.kind != "processor":
                return DefinitionDiff(restart_reason=f"the {node.kind} {id}")
            for what, is_so in _FIXED_AT_START.items():
                if is_so(old.nodes[id]) != is_so(node):
                    return DefinitionDiff(restart_reason=f"whether {id} {what}")
            changed.add(id)
    # Executors have pickled copies of the processors, which a swap on the driver does not reach.
    if changed and new.pipeline.spark is not None:
        return DefinitionDiff(restart_reason=f"{', '.join(sorted(changed))}, which runs on Spark,")
    description = old.pipeline.settings.description != new.pipeline.settings.description
    return DefinitionDiff(frozenset(changed), description)


def _shape(graph: Graph) -> list[tuple[object, ...]]:
    """The nodes and edges, in order: the vote of a destination is its place among them."""
    return [(node.id, node.kind, tuple(node.inputs), tuple(node.outputs)) for node in graph.nodes.values()]


def _settings(graph: Graph) -> tuple[Any, ...]:
    pipeline = graph.pipeline
    settings = pipeline.settings.model_dump(exclude={"description"})
    rest = _definition_of(pipeline, "settings", "sources", "destinations", "dead_letters")
    return settings, rest, _definition_of(pipeline.dead_letters)


def _node(node: Node) -> dict[str, Any]:
    """The definition of a node, without what is part of the shape of the graph."""
    return _definition_of(node.declared, "after", "named")


_FIXED_AT_START = {"has a state": attrgetter("stateful"), "defers": attrgetter("defers")}
"""What a run sets up when it starts, so a swap cannot change it."""


def _definition_of(declared: object, *leave_out: str) -> dict[str, Any]:
    passed_over = {"place", "problems", "processors", *leave_out}
    return {name: value for name, value in sorted(vars(declared).items()) if name not in passed_over}
