"""DefinitionDiff: what a new definition of a pipeline changes, and so how little it takes to carry it out."""

from dataclasses import dataclass
from typing import Any

from conduit_py.graph.node import Graph, Node
from conduit_py.lifecycle.definition_equality import definitions_equal
from conduit_py.pipeline import Processor


@dataclass(frozen=True)
class DefinitionDiff:
    """How a definition differs from the one before it."""

    processors: frozenset[str] = frozenset()
    """The nodes whose processors differ."""
    words: bool = False
    """Whether only what people read differs too, such as the description."""
    rest: str | None = None
    """What else differs, for which the pipeline must be started anew."""

    def __bool__(self) -> bool:
        return bool(self.processors) or self.words or self.rest is not None


def diff_definitions(old: Graph, new: Graph) -> DefinitionDiff:
    """Compare two definitions of one pipeline."""
    if _shape(old) != _shape(new):
        return DefinitionDiff(rest="the graph")
    if not definitions_equal(_settings(old), _settings(new)):
        return DefinitionDiff(rest="the settings")
    changed = set()
    for id, node in new.nodes.items():
        if not definitions_equal(_node(old.nodes[id]), _node(node)):
            if node.kind != "processor":
                return DefinitionDiff(rest=f"the {node.kind} {id}")
            for what, is_so in _NEEDS_ROOM.items():
                if is_so(old.nodes[id]) != is_so(node):
                    return DefinitionDiff(rest=f"whether {id} {what}")
            changed.add(id)
    if changed and new.pipeline.spark is not None:
        return DefinitionDiff(rest=f"{', '.join(sorted(changed))}, which runs on Spark,")
    words = old.pipeline.settings.description != new.pipeline.settings.description
    return DefinitionDiff(frozenset(changed), words)


def _shape(graph: Graph) -> list[tuple[object, ...]]:
    """The nodes and edges. Their order counts: it says which destination has which vote."""
    return [(node.id, node.kind, tuple(node.inputs), tuple(node.outputs)) for node in graph.nodes.values()]


def _settings(graph: Graph) -> tuple[Any, ...]:
    pipeline = graph.pipeline
    settings = pipeline.settings.model_dump(exclude={"description"})
    rest = _declared(pipeline, "settings", "sources", "destinations", "dead_letters")
    return settings, rest, _declared(pipeline.dead_letters)


def _node(node: Node) -> dict[str, Any]:
    """All that was said about a node, apart from what the shape of the graph says too."""
    return _declared(node.declared, "after", "named")


def _stateful(node: Node) -> bool:
    plugin = node.declared.processor if isinstance(node.declared, Processor) else None
    return plugin is not None and plugin.stateful


def _defers(node: Node) -> bool:
    plugin = node.declared.processor if isinstance(node.declared, Processor) else None
    return plugin is not None and plugin.defers


_NEEDS_ROOM = {"has a state": _stateful, "defers": _defers}
"""For what a run makes room when it begins."""


def _declared(declared: object, *leave_out: str) -> dict[str, Any]:
    passed_over = {"place", "problems", "processors", *leave_out}
    return {name: value for name, value in sorted(vars(declared).items()) if name not in passed_over}
