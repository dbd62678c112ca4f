"""PipelineSplit: which processors of a pipeline run on executors and which on the driver, as two pipelines.

A processor that keeps state needs every record, in order, and its state in the commit; one that defers records needs
the transactions. Only the driver has those. So it runs there, and with it everything behind it; what comes before it
runs on executors. Nodes keep their ids in both halves, and with them their state, their dead letters and their counts,
whichever engine runs them.

Only the driver replays dead letters that are kept. The invariant: a letter enters at the node that refused it,
wherever that was, and meets every node behind it once, as on one machine. So the driver then has the processors
of executors too, behind sources that it does not read.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

from conduit_py import sdk
from conduit_py.graph.node import Graph, Node
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Processor, Source


class Boundary(NamedTuple):
    """A node of the driver that is given what leaves executors: a processor, or a destination."""

    node: str
    sources: list[str]
    """Whose records can get there without meeting the driver before; each of them on one path only."""


class PipelineSplit:
    """A checked pipeline in two halves: nothing on the driver leads to an executor.

    Every record of a source leaves executors at exits, by whose place in `exits` it is known which. Destinations come
    first, in their order, so that where no processor is on the driver the place of a destination is its own.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.driver = _driver(graph)
        """The processors that the driver runs, in topological order."""
        self.executors = [node.id for node in graph.nodes.values() if node.kind == "processor" and not self._here(node)]
        """The processors that executors run, in topological order."""
        self.exits = self._exits()
        self._resends = graph.pipeline.dead_letters.handler == "journal"

    def executed(self) -> Pipeline:
        """The pipeline that executors run: a destination for each exit, at its place.

        Those that are destinations have their connector; processors have one that goes nowhere.
        """
        half = copy(self.graph.pipeline)
        # Nothing is written there, so nothing has to be once: that is for the driver to see to.
        half.settings = half.settings.model_copy(update={"delivery": "at_least_once", "transaction": None})
        half.outbox = {}
        half.dead_letters = DeadLetters()
        half.sources = [_bare(source) for source in half.sources]
        half.processors = [self._placed(id, self._inputs(id, here=False)) for id in self.executors]
        half.destinations = [self._exit(each) for each in self.exits]
        return half

    def driven(
        self, arrivals: Callable[[str], Sequence[Processor]], receipt: Callable[[str, int], Processor]
    ) -> Pipeline:
        """The pipeline that the driver runs, whose sources must be given connectors that read outcomes.

        What they read meets `arrivals` first, whose ids begin with the given text, and then a `receipt`, made with an
        id and a place, for each exit that records of this source can come to.
        """
        receipts = {each.node: self._receipt(receipt, place) for place, each in enumerate(self.exits)}
        half = copy(self.graph.pipeline)
        half.sources = [_bare(source) for source in half.sources]
        for source in half.sources:
            source.processors = list(arrivals(self.unused("executors")))
        half.processors = list(receipts.values())
        half.processors += [self._placed(id, self._ways_in(id)) for id in (self.executors if self._resends else ())]
        half.processors += [self._placed(id, self._behind(id, receipts)) for id in self.driver]
        half.sources += self._letters() if self._resends else []
        half.destinations = [self._written(each, self._behind(each.id, receipts)) for each in half.destinations]
        return half

    def unused(self, prefix: str) -> str:
        """A text like this one with which no id begins, be it of the pipeline or of a source or destination."""
        while any(id.rpartition(":")[2].startswith(prefix) for id in self.graph.nodes):
            prefix += "-"
        return prefix

    def _here(self, node: Node) -> bool:
        return node.kind == "destination" or node.id in self.driver

    def _inputs(self, id: str, *, here: bool) -> list[str]:
        nodes = self.graph.nodes
        return [upper for upper in nodes[id].inputs if self._here(nodes[upper]) == here]

    def _exits(self) -> list[Boundary]:
        origins: dict[str, set[str]] = {node.id: {node.id} for node in self.graph.sources}
        for id in self.executors:
            origins[id] = set().union(*(origins[upper] for upper in self.graph.nodes[id].inputs))
        exits = []
        for id in [*(each.id for each in self.graph.pipeline.destinations), *self.driver]:
            inputs = self._inputs(id, here=False)
            reaching = set().union(*(origins[upper] for upper in inputs))
            if inputs:
                exits.append(
                    Boundary(id, [source.id for source in self.graph.pipeline.sources if source.id in reaching])
                )
        return exits

    def _placed(self, id: str, after: list[str]) -> Processor:
        """A processor under the id that it has in the whole graph, whoever it belongs to there."""
        declared = self.graph.nodes[id].declared
        assert isinstance(declared, Processor)
        placed = copy(declared)
        placed.id, placed.named, placed.after = id, True, after
        return placed

    def _exit(self, leaving: Boundary) -> Destination:
        declared = self.graph.nodes[leaving.node].declared
        after = self._inputs(leaving.node, here=False)
        if isinstance(declared, Destination):
            # The condition is asked where a record is made: here, unless some are made on the driver.
            return _joined(declared, after, asks=not self._inputs(leaving.node, here=True))
        return Destination(leaving.node, BoundaryPlaceholder(), after=after)

    def _written(self, declared: Destination, after: list[str]) -> Destination:
        written = _joined(declared, after, asks=True)
        written.asked_before = not self._inputs(declared.id, here=True)
        return written

    def _behind(self, id: str, receipts: dict[str, Processor]) -> list[str]:
        arriving = [receipts[id].id] if id in receipts else []
        again = self._ways_in(id) if self._resends else []
        return arriving + again + self._inputs(id, here=True)

    def _ways_in(self, id: str) -> list[str]:
        """What feeds a node with letters of those before it that executors run."""
        sources = {source.letters_of: source.id for source in self._letters()}
        return [sources.get(upper, upper) for upper in self._inputs(id, here=False)]

    def _letters(self) -> list[Source]:
        """For each source one behind which its letters come in."""
        made = []
        for place, source in enumerate(self.graph.pipeline.sources):
            way_in = Source(f"{self.unused('letters')}-{place}", LettersOnly(), window=source.window)
            way_in.letters_of = source.id
            made.append(way_in)
        return made

    def _receipt(self, receipt: Callable[[str, int], Processor], place: int) -> Processor:
        made = receipt(f"{self.unused('receipt')}-{place}", place)
        made.after = self.exits[place].sources
        return made


class LettersOnly(sdk.SourceConnector[sdk.Options]):
    """Stands where the letters of a source come in again, of which nothing else is read here."""

    def read(self, n: int) -> list[sdk.Record]:
        raise NotImplementedError("only letters come in here")


class BoundaryPlaceholder(sdk.DestinationConnector[sdk.Options]):
    """Stands where a processor of the driver does; a task puts what collects its records in its place."""

    def write(self, batch: sdk.Batch) -> None:
        raise NotImplementedError("a task puts something else in its place")


def _driver(graph: Graph) -> list[str]:
    """The processors that keep state, and all behind one that does."""
    found: list[str] = []
    for node in graph.nodes.values():
        if isinstance(node.declared, Processor) and (
            _needs_all(node.declared) or any(id in found for id in node.inputs)
        ):
            found.append(node.id)
    return found


def _needs_all(declared: Processor) -> bool:
    """Whether it must be where all records are, in order, and where transactions begin."""
    plugin: sdk.Processor[Any] | None = declared.processor
    return plugin is not None and (plugin.stateful or plugin.defers)


def _bare(source: Source) -> Source:
    bare = copy(source)
    bare.processors = []
    return bare


def _joined(declared: Destination, after: list[str], *, asks: bool) -> Destination:
    """A destination without processors of its own: those are nodes like all others."""
    joined = copy(declared)
    joined.processors, joined.after = [], after
    joined.when = declared.when if asks else None
    return joined
