"""What a pipeline cannot do: defer records where that is unsound, or run on Spark with what Spark cannot run."""

from collections.abc import Iterator

import networkx as nx

from conduit_py.errors import Problem
from conduit_py.graph.node import Graph, Node
from conduit_py.pipeline import Pipeline, Processor
from conduit_py.sdk.source import SharedSource


def deferring_processors(graph: Graph) -> list[str]:
    """The processors that may defer."""
    return [node.id for node in graph.nodes.values() if _defers(node)]


def defer_problems(graph: Graph) -> Iterator[Problem]:
    """What is in the way of processors that defer, each by name.

    A commit has the positions of everything before the deferred record and of nothing behind it. So nothing that
    commits may have seen a record that can still be deferred: no processor with state, and no other branch.
    """
    for id in deferring_processors(graph):
        node = graph.nodes[id]
        yield from _form_problems(node)
        yield from _place_problems(graph, node)


def _form_problems(node: Node) -> Iterator[Problem]:
    declared = _processor(node)
    assert declared.processor is not None
    if not declared.processor.stateful:
        what = "defers, for which it must be able to ask its state whether a record is the first of its transaction"
        yield _problem(node, what, "write state=True too")
    if declared.retry.attempts > 1:
        what = "defers, so it cannot have retries: a record that is tried again has others behind it already"
        yield _problem(node, what, "remove the retry; a transaction that fails is tried again as a whole")


def _place_problems(graph: Graph, node: Node) -> Iterator[Problem]:
    before = [graph.nodes[id] for id in sorted(nx.ancestors(graph.digraph, node.id))]
    votes = graph.votes(node.id)
    for each in before:
        if each.kind == "processor" and (plugin := _processor(each).processor) is not None and plugin.stateful:
            what = f"defers, but {each.id}, which comes before it, would have counted the deferred record in its state"
            yield _problem(node, what, f"let {node.id} come before {each.id}, or do the work of both in one processor")
        if each.kind == "source" and graph.votes(each.id) != votes:
            what = f"defers, but records of {each.id} also go another way, where they would be written all the same"
            yield _problem(node, what, "let it come before the branches part")


def _defers(node: Node) -> bool:
    plugin = node.declared.processor if isinstance(node.declared, Processor) else None
    return plugin is not None and plugin.defers


def _processor(node: Node) -> Processor:
    assert isinstance(node.declared, Processor)
    return node.declared


def _problem(node: Node, message: str, suggestion: str) -> Problem:
    return Problem(f"processors.{node.id}", message, suggestion, *(node.declared.place or (None, None)))


def spark_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Everything in a pipeline that cannot run on Spark, each with its reason."""
    for source in pipeline.sources:
        if isinstance(source.connector, SharedSource):
            what = "shares its work with other processes by leases, which the tasks of Spark do not keep"
            yield Problem(f"sources.{source.id}", what, 'run it on the engine "trio"', *(source.place or (None, None)))
