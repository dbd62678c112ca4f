"""compile_pipeline: from a pipeline definition to a checked graph, or to all of its problems."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import networkx as nx

from conduit_py.errors import PipelineInvalid, Problem
from conduit_py.graph.checks import defer_problems, delivery_problems, file_problems, flow_problems, spark_problems
from conduit_py.graph.node import Graph, Kind, Node
from conduit_py.owned_process import PICKLE_HINT, why_not_pickled
from conduit_py.pipeline import Destination, Pipeline, Processor, Source, derive
from conduit_py.record import Record
from conduit_py.sdk.plugin import Place, at, did_you_mean
from conduit_py.sdk.processor import Condition, FunctionProcessor

DEAD_LETTERS = "dead-letters"
"""The id of the dead-letter handler, which every pipeline has."""
PAIRS_MAX = 40_000
"""Of a source and a destination. A file of 70 kB can have 160 000, each with an edge and a promise of its own."""


def compile_pipeline(pipeline: Pipeline, *, types_checked: bool = False) -> Graph:
    """Return the graph of a pipeline. Raises one PipelineInvalid with all problems of definition and graph.

    `types_checked` is for a part of a pipeline that was compiled before, elsewhere.
    """
    draft = _Draft(pipeline)
    problems = [*_declared_problems(pipeline), *draft.problems, *delivery_problems(pipeline), *file_problems(pipeline)]
    if pipeline.spark is not None:
        problems += spark_problems(pipeline)
    # The shape of a graph with missing or duplicate nodes would only produce problems about problems.
    if not draft.problems:
        problems += _shape_problems(draft) or ([] if types_checked else _type_problems(draft))
    if problems:
        raise PipelineInvalid(pipeline.id, problems)
    # By the order of the definition, so that votes, drawings and reports never depend on the order of a set.
    places = {id: place for place, id in enumerate(draft.nodes)}
    order = list(nx.lexicographical_topological_sort(draft.digraph, key=places.__getitem__))
    graph = Graph(pipeline, draft.digraph, {id: draft.nodes[id] for id in order})
    # Only now: these checks need the ancestors and the votes of a graph without problems.
    if unsound := list(defer_problems(graph)):
        raise PipelineInvalid(pipeline.id, unsound)
    return graph


def as_graph(definition: Pipeline | Graph) -> Graph:
    """Return the graph of a definition. A graph is returned as it is: it was checked before."""
    return definition if isinstance(definition, Graph) else compile_pipeline(definition)


def taken_id(id: str, by: str) -> tuple[str, str]:
    """Return the message and the suggestion for a node whose id another node has."""
    return f"the id {id!r} is already taken by {by}", "give every node an id of its own"


class _Draft:
    """The graph under construction: nodes, edges and problems."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.nodes: dict[str, Node] = {}
        self.digraph: nx.DiGraph[str] = nx.DiGraph()
        self.problems: list[Problem] = []
        self._ends: dict[str, str] = {}
        self._heads: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._add_sources()
        self._add_processors()
        self._add_destinations()
        if len(self.pipeline.sources) * len(self.pipeline.destinations) <= PAIRS_MAX:
            self._connect()
        else:
            what = f"sources times destinations must be at most {PAIRS_MAX}"
            self._problem("destinations", what, self.pipeline.place, "make several pipelines of it")

    def _add_sources(self) -> None:
        if not self.pipeline.sources:
            self._problem("sources", "a pipeline needs at least one source", self.pipeline.place)
        for source in self.pipeline.sources:
            self._add(source.id, "source", source)
            chain = self._add_chain(source.id, source.processors)
            self._link_chain([source.id, *chain])
            self._ends[source.id] = chain[-1] if chain else source.id

    def _add_processors(self) -> None:
        self._line = self._add_chain(None, self.pipeline.processors)
        for id in self._line:
            self._ends[id] = id

    def _add_destinations(self) -> None:
        if not self.pipeline.destinations:
            self._problem("destinations", "a pipeline needs at least one destination", self.pipeline.place)
        for destination in self.pipeline.destinations:
            declared, processors = _condition_first(destination)
            chain = self._add_chain(destination.id, processors)
            self._add(destination.id, "destination", declared)
            self._link_chain([*chain, destination.id])
            self._heads[destination.id] = chain[0] if chain else destination.id

    def _add_chain(self, owner: str | None, processors: Sequence[Processor]) -> list[str]:
        ids = []
        for processor in processors:
            id = f"{owner}:{processor.id}" if owner else processor.id
            if not processor.named:
                id = self._free_id(id)
            if owner and processor.after is not None:
                self._problem(f"{id}.after", f"is for processors of the pipeline, not of {owner!r}", processor.place)
            self._add(id, "processor", processor)
            if owner:
                self._owners[id] = owner
            ids.append(id)
        return ids

    def _connect(self) -> None:
        """Add the edges that the order of the lists implies, unless `after` names others."""
        sources = [source.id for source in self.pipeline.sources]
        previous = sources
        for id, processor in zip(self._line, self.pipeline.processors, strict=True):
            self._link(previous if processor.after is None else processor.after, id, id, processor.place)
            previous = [id]
        for destination in self.pipeline.destinations:
            after = previous if destination.after is None else destination.after
            self._link(after, self._heads[destination.id], destination.id, destination.place)

    def _link(self, after: Sequence[str], id: str, said_by: str, place: Place | None) -> None:
        # A pipeline without sources is reported already.
        if not after and self.pipeline.sources:
            self._problem(f"{said_by}.after", "names no node, so no record would ever arrive", place)
        for name in after:
            if name in self._ends:
                self._edge(self._ends[name], id)
            elif name in self._owners:
                owner = self._owners[name]
                what = f"{name!r} belongs to the {self.nodes[owner].kind} {owner!r} and cannot be joined by others"
                self._problem(f"{said_by}.after", what, place)
            elif name in self.nodes:
                self._problem(f"{said_by}.after", f"{name!r} is a destination, which has no output", place)
            else:
                known = sorted(self._ends)
                hint = did_you_mean(name, known) or f"nodes are {', '.join(known)}"
                self._problem(f"{said_by}.after", f"there is no node {name!r}", place, hint)

    def _link_chain(self, ids: Sequence[str]) -> None:
        for upper, lower in itertools.pairwise(ids):
            self._edge(upper, lower)

    def _edge(self, upper: str, lower: str) -> None:
        # `after` may name a node twice; a second edge would deliver every record twice.
        if not self.digraph.has_edge(upper, lower):
            self.digraph.add_edge(upper, lower)
            self.nodes[upper].outputs.append(lower)
            self.nodes[lower].inputs.append(upper)

    def _add(self, id: str, kind: Kind, declared: Source | Processor | Destination) -> None:
        if id in self.nodes or id == DEAD_LETTERS:
            taken_by = f"a {self.nodes[id].kind}" if id in self.nodes else "the dead-letter handler"
            message, hint = taken_id(id, taken_by)
            self._problem(id, message, declared.place, hint)
        self.nodes[id] = Node(id, kind, declared)
        self.digraph.add_node(id)

    def _free_id(self, id: str) -> str:
        candidates = (f"{id}-{number}" for number in range(2, 1_000_000))
        return id if id not in self.nodes else next(name for name in candidates if name not in self.nodes)

    def _problem(self, path: str, message: str, place: Place | None, suggestion: str | None = None) -> None:
        self.problems.append(Problem(path, message, suggestion, *(place or (None, None))))


def _condition_first(destination: Destination) -> tuple[Destination, list[Processor]]:
    """Make the condition of a destination the first of its processors: the others see only the records it lets through.

    As a node of its own it is asked once: a dead letter enters behind it if a processor refused it, or the destination.
    """
    if destination.when is None or not destination.processors:
        return destination, destination.processors
    condition = Processor("when", DestinationCondition(partial(_keep_if, destination.when), name="when"), named=False)
    condition.place = destination.place
    return derive(destination, when=None), [condition, *destination.processors]


class DestinationCondition(FunctionProcessor[[Record], Record | None]):
    """The condition of a destination as a processor: what it filters, the destination does not want."""


def _keep_if(when: Condition, record: Record) -> Record | None:
    return record if when(record) else None


def _declared_problems(pipeline: Pipeline) -> Iterator[Problem]:
    yield from pipeline.problems
    yield from (at(problem, "dead_letters") for problem in pipeline.dead_letters.problems)
    for kind, items in (("sources", pipeline.sources), ("destinations", pipeline.destinations)):
        for item in items:
            yield from (at(problem, f"{kind}.{item.id}") for problem in item.problems)
            yield from _processor_problems(f"{kind}.{item.id}.processors", item.processors)
    yield from _processor_problems("processors", pipeline.processors)


def _processor_problems(prefix: str, processors: Sequence[Processor]) -> Iterator[Problem]:
    for processor in processors:
        path = f"{prefix}.{processor.id}"
        yield from (at(problem, path) for problem in processor.problems)
        if processor.batch_seconds and not processor.problems:
            yield from (at(problem, path) for problem in _collecting_problems(processor))
        if processor.where == "process" and not processor.problems:
            yield from (at(problem, path) for problem in _process_problems(processor))


def _collecting_problems(processor: Processor) -> Iterator[Problem]:
    """Why records cannot wait for others before a processor."""
    plugin, place = processor.processor, processor.place or (None, None)
    assert plugin is not None
    if plugin.by_table:
        what = "takes tables, which are as large as their source makes them"
        yield Problem("batch_seconds", what, "remove it, and set batch_size of the source", *place)
    elif plugin.defers:
        yield Problem("batch_seconds", "defers, and a record that waits cannot be deferred", "remove it", *place)


def _process_problems(processor: Processor) -> Iterator[Problem]:
    """Why a processor cannot run in processes."""
    plugin, place = processor.processor, processor.place or (None, None)
    assert plugin is not None
    if plugin.stateful:
        what = "keeps state, which commits with the records in the process that writes them"
        yield Problem("where", what, 'remove where="process"', *place)
    elif find_spec("cloudpickle") is None:
        what, hint = "needs cloudpickle, which is not installed here", "pip install 'conduit-dataflow[processes]'"
        yield Problem("where", what, hint, *place)
    elif (reason := why_not_pickled(plugin, processor.files)) is not None:
        yield Problem("where", f"cannot be sent to a process: {reason}", PICKLE_HINT, *place)


def _shape_problems(draft: _Draft) -> list[Problem]:
    cycles = list(_cycles(draft))
    # Paths cannot be counted in a graph with cycles.
    return [*cycles, *_loose_ends(draft), *([] if cycles else [*_double_paths(draft), *_stray_ticks(draft)])]


def _type_problems(draft: _Draft) -> list[Problem]:
    order = nx.topological_sort(draft.digraph)
    return list(flow_problems(draft.pipeline, [draft.nodes[id] for id in order]))


def _cycles(draft: _Draft) -> Iterator[Problem]:
    """One cycle for each group of nodes that reach each other."""
    group_of = {id: group for group in nx.strongly_connected_components(draft.digraph) for id in group}
    seen: set[str] = set()
    for id in draft.nodes:
        group = group_of[id]
        if id not in seen and (len(group) > 1 or draft.digraph.has_edge(id, id)):
            path = [upper for upper, _ in nx.find_cycle(draft.digraph.subgraph(group), id)]
            message = f"the graph has a cycle: {' → '.join([*path, path[0]])}"
            yield _at_node(draft.nodes[path[0]], message, "remove one of these `after`")
        seen |= group


def _loose_ends(draft: _Draft) -> Iterator[Problem]:
    for node in draft.nodes.values():
        if node.kind != "source" and not node.inputs:
            yield _at_node(node, "no node sends records to this node")
        if node.kind != "destination" and not node.outputs:
            yield _at_node(node, "its records go nowhere", f"add a destination with after={node.id!r}")


def _double_paths(draft: _Draft) -> Iterator[Problem]:
    """A message that reached a node on two paths would be written twice, and its votes counted twice."""
    order = list(nx.topological_sort(draft.digraph))
    for source in draft.pipeline.sources:
        paths = {source.id: 1}
        for id in order:
            if id != source.id:
                paths[id] = sum(paths.get(upper, 0) for upper in draft.nodes[id].inputs)
            if paths[id] > 1:
                yield _at_node(draft.nodes[id], f"records of {source.id!r} reach it on {paths[id]} paths")
                break


def _stray_ticks(draft: _Draft) -> Iterator[Problem]:
    """A processor not written for a clock may refuse its ticks, and then windows behind it never fire."""
    for source in draft.pipeline.sources:
        if source.connector is None or not source.connector.follows_others:
            continue
        for node in (draft.nodes[id] for id in draft.nodes[source.id].outputs):
            behind = [draft.nodes[id] for id in nx.descendants(draft.digraph, node.id)]
            waiting = next((each for each in behind if each.stateful), None)
            if len(node.inputs) > 1 and waiting is not None and _ignores_clocks(node):
                hint = "give it to the other sources alone: Source(…, processors=[…])"
                yield _at_node(node, f"gets the ticks of {source.id!r} too, which are for {waiting.id!r}", hint)


def _ignores_clocks(node: Node) -> bool:
    # A function of the user may look what it was given, and so may a condition.
    declared = node.declared
    if not isinstance(declared, Processor) or declared.when is not None or node.stateful:
        return False
    return not isinstance(declared.processor, FunctionProcessor)


def _at_node(node: Node, message: str, suggestion: str | None = None) -> Problem:
    return Problem(f"{node.kind}s.{node.id}", message, suggestion, *(node.declared.place or (None, None)))
