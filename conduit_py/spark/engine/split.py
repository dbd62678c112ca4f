"""PipelineSplit: which processors of a pipeline run on executors and which on the driver, as two pipelines.

A processor that keeps state needs every record, in order, and its state in the commit; one that defers records needs
the transactions. Only the driver has those. So it runs there, and with it everything behind it; what comes before it
runs on executors. Nodes keep their ids in both halves, and with them their state, their dead letters and their counts,
whichever engine runs them.

Only the driver replays dead letters that are kept. The invariant: a letter enters at the node that refused it,
wherever that was, and meets every node behind it once, as on one machine. So the driver then has the processors
of executors too, behind entries where nothing but letters comes in.

`plan` pickles the half that executors run, so that each of them can build it again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from conduit_py import sdk
from conduit_py.child.link import pickle_pipeline, processors_of
from conduit_py.dead_letter_policy import DestinationPolicy
from conduit_py.errors import PipelineInvalid
from conduit_py.graph.checks import spark_problems
from conduit_py.graph.node import Graph, Node
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Processor, Source, derive
from conduit_py.sdk.destination import ManyWriterDestination, PreparingDestination
from conduit_py.sdk.plugin import secrets_in
from conduit_py.sdk.source import SplittableSource
from conduit_py.spark.engine.outcome import PreparedWrites, boundary_decoder, outcome_decoders
from conduit_py.spark.session.java import is_authenticated
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.stream.replay import ReplayEntry

Substitute: TypeAlias = Callable[[Any], Any]
"""Gives the connector that stands for another one, or itself."""


class Boundary(NamedTuple):
    """A node of the driver that is given what leaves executors: a processor, or a destination."""

    node: str
    sources: list[str]
    """The sources whose records reach it from executors, each on one path only."""


class PipelineSplit:
    """A checked pipeline in two halves: nothing on the driver leads to an executor.

    Every record of a source leaves executors at boundaries, named by their index in `boundaries`. Destinations come
    first, in their order: if the driver runs no processor, the index of a destination is its place in the pipeline.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.driver = _driver_processors(graph)
        """The processors that the driver runs, in topological order."""
        self.executors = [node.id for node in graph.nodes.values() if node.kind == "processor" and not self._here(node)]
        """The processors that executors run, in topological order."""
        self.boundaries = self._find_boundaries()
        self._replays = graph.pipeline.dead_letters.policy.keeps

    def executor_pipeline(
        self, *, source: Substitute = lambda same: same, destination: Substitute = lambda same: same
    ) -> Pipeline:
        """The pipeline that executors run: a destination for each boundary, at its index.

        `source` and `destination` give the connector for that of an end, or None where it must stay on the driver.
        """
        whole = self.graph.pipeline
        return derive(
            whole,
            # Executors write nothing, so delivery is the driver's matter.
            settings=whole.settings.model_copy(update={"delivery": "at_least_once", "transaction": None}),
            outbox={},
            dead_letters=DeadLetters(),
            sources=[derive(each, processors=[], connector=source(each.connector)) for each in whole.sources],
            processors=[self._processor(id, self._inputs(id, here=False)) for id in self.executors],
            destinations=[self._boundary_destination(each, destination) for each in self.boundaries],
        )

    def driver_pipeline(
        self, read_outcomes: Callable[[Source], Any], substitute: Substitute = lambda same: same
    ) -> Pipeline:
        """The pipeline that the driver runs. `read_outcomes` gives the connector that reads the outcomes of a source.

        What it reads meets the decoders of outcomes first, then the decoder of each boundary that records of this
        source can come to. `substitute` gives the connector for that of a destination or a dead-letter handler.
        """
        whole = self.graph.pipeline
        letters = whole.dead_letters
        decoders = {each.node: self._boundary_decoder(place) for place, each in enumerate(self.boundaries)}
        stops, taker = letters.policy.stops, letters.policy.connector
        prefix = self.free_prefix("executors")
        sources = [
            derive(each, connector=read_outcomes(each), processors=outcome_decoders(prefix, stops=stops))
            for each in whole.sources
        ]
        processors = list(decoders.values())
        if self._replays:
            sources += self._replay_entries()
            processors += [self._processor(id, self._replay_inputs(id)) for id in self.executors]
        processors += [self._processor(id, self._driver_inputs(id, decoders)) for id in self.driver]
        return derive(
            whole,
            sources=sources,
            processors=processors,
            destinations=[self._destination(each.id, decoders, substitute) for each in whole.destinations],
            dead_letters=letters if taker is None else derive(letters, policy=DestinationPolicy(substitute(taker))),
        )

    def free_prefix(self, prefix: str) -> str:
        """This prefix, extended until no id in the pipeline begins with it."""
        # A node of the user with the same id would share its state, dead letters and counts with ours.
        while any(id.rpartition(":")[2].startswith(prefix) for id in self.graph.nodes):
            prefix += "-"
        return prefix

    def _here(self, node: Node) -> bool:
        return node.kind == "destination" or node.id in self.driver

    def _inputs(self, id: str, *, here: bool) -> list[str]:
        nodes = self.graph.nodes
        return [upper for upper in nodes[id].inputs if self._here(nodes[upper]) == here]

    def _find_boundaries(self) -> list[Boundary]:
        origins: dict[str, set[str]] = {node.id: {node.id} for node in self.graph.sources}
        for id in self.executors:
            origins[id] = set().union(*(origins[upper] for upper in self.graph.nodes[id].inputs))
        boundaries = []
        for id in [*(each.id for each in self.graph.pipeline.destinations), *self.driver]:
            inputs = self._inputs(id, here=False)
            reaching = set().union(*(origins[upper] for upper in inputs))
            if inputs:
                sources = [source.id for source in self.graph.pipeline.sources if source.id in reaching]
                boundaries.append(Boundary(id, sources))
        return boundaries

    def _processor(self, id: str, after: list[str]) -> Processor:
        """A processor under the id that it has in the whole graph, whichever node it belongs to there."""
        declared = self.graph.nodes[id].declared
        assert isinstance(declared, Processor)
        # The same id on both sides: state, dead letters and counts are found by it.
        # Executors are processes already, and as many as the cluster has cores.
        return derive(declared, where="thread", id=id, named=True, after=after)

    def _boundary_destination(self, boundary: Boundary, substitute: Substitute) -> Destination:
        declared = self.graph.nodes[boundary.node].declared
        after = self._inputs(boundary.node, here=False)
        if not isinstance(declared, Destination):
            placeholder = Destination(boundary.node, BoundaryPlaceholder(), after=after)
            return derive(placeholder, connector=substitute(placeholder.connector))
        # `when` is asked where a record is made: on executors, unless the driver makes some of them.
        when = None if self._inputs(boundary.node, here=True) else declared.when
        return derive(declared, processors=[], after=after, when=when, connector=substitute(declared.connector))

    def _destination(self, id: str, decoders: dict[str, Processor], substitute: Substitute) -> Destination:
        # As the graph has it: the condition of a destination with processors is the first of them.
        declared = self.graph.nodes[id].declared
        assert isinstance(declared, Destination)
        return derive(
            declared,
            processors=[],
            after=self._driver_inputs(declared.id, decoders),
            connector=substitute(declared.connector),
            # `when` stays set: dead letters are replayed here, and executors were not asked about them.
            write_adapter=PreparedWrites(when_asked=not self._inputs(declared.id, here=True)),
        )

    def _driver_inputs(self, id: str, decoders: dict[str, Processor]) -> list[str]:
        decoded = [decoders[id].id] if id in decoders else []
        replayed = self._replay_inputs(id) if self._replays else []
        return decoded + replayed + self._inputs(id, here=True)

    def _replay_inputs(self, id: str) -> list[str]:
        """What feeds a node with replayed letters of those before it that executors run."""
        entries = {source.id: self._entry_id(place) for place, source in enumerate(self.graph.pipeline.sources)}
        return [entries.get(upper, upper) for upper in self._inputs(id, here=False)]

    def _replay_entries(self) -> list[Source]:
        return [
            Source(self._entry_id(place), ReplayEntry(source.id), window=source.window)
            for place, source in enumerate(self.graph.pipeline.sources)
        ]

    def _entry_id(self, place: int) -> str:
        return f"{self.free_prefix('letters')}-{place}"

    def _boundary_decoder(self, place: int) -> Processor:
        decoder = boundary_decoder(f"{self.free_prefix('boundary')}-{place}", place)
        return derive(decoder, after=self.boundaries[place].sources)


class BoundaryPlaceholder(sdk.DestinationConnector[sdk.Options]):
    """Stands in for a processor of the driver. A task replaces it by a collector of its records."""

    def write(self, batch: sdk.Batch) -> None:
        raise NotImplementedError("a task must replace this destination")


def _driver_processors(graph: Graph) -> list[str]:
    """The processors that keep state or defer records, and all behind one that does."""
    found: list[str] = []
    for node in graph.nodes.values():
        if isinstance(node.declared, Processor) and (
            _needs_all(node.declared) or any(id in found for id in node.inputs)
        ):
            found.append(node.id)
    return found


def _needs_all(declared: Processor) -> bool:
    """Whether it needs all records in order, or the transactions, which only the driver has."""
    plugin: sdk.Processor[Any] | None = declared.processor
    return plugin is not None and (plugin.stateful or plugin.defers)


class Plan(NamedTuple):
    """What executors run, and the driver's working directory, from which relative paths are meant."""

    pipeline: Pipeline
    folder: str


def plan(split: PipelineSplit, spark: SparkOptions, *, prepared: bool) -> bytes:
    """What executors run, pickled; with `prepared` they have the connectors of destinations too.

    Raises PipelineInvalid for what cannot run on Spark or cannot be sent there.
    """
    pipeline = split.graph.pipeline
    problems = list(spark_problems(pipeline))
    if problems:
        raise PipelineInvalid(pipeline.id, problems)
    # A connector that stays on the driver may hold what only the driver can have, so it is not pickled.
    executed = split.executor_pipeline(
        source=lambda connector: connector if way_to_read(connector, spark).by == "executors" else None,
        destination=lambda connector: _of_tasks(connector) if prepared else None,
    )
    return pickle_pipeline(pipeline, Plan(executed, str(Path.cwd())), processors_of(executed), "executors")


def _of_tasks(connector: Any) -> Any:
    # M8: a task has the credentials of the place that it writes to, and no others.
    return connector.for_tasks() if isinstance(connector, ManyWriterDestination) else connector


class WayToRead(NamedTuple):
    """Which processes of Spark read a source, and why those."""

    by: Literal["executors", "driver"]
    why: str


def way_to_read(connector: sdk.SourceConnector[Any], spark: SparkOptions) -> WayToRead:
    """Return which processes read a source on this Spark."""
    alone = connector.reads_alone()
    if not isinstance(connector, SplittableSource) or not connector.splits():
        return WayToRead("driver", f"{alone or 'it cannot be split'}; the driver sends its records to executors")
    # As of what is written: any program that joins a Spark without a secret would get the credentials.
    if any(secrets_in(connector.options)) and not is_authenticated(spark.master, spark.conf):
        return WayToRead("driver", _NO_SECRET)
    return WayToRead("executors", "it is divided into parts, one for each task")


_NO_SECRET = "Spark asks nobody for a secret, so executors get no credentials: set spark.authenticate to true"


class WayToWrite(NamedTuple):
    """How what a destination gets is written on Spark, and why so."""

    way: Literal["staged by executors", "prepared by executors", "written by the driver"]
    why: str


def ways_to_write(split: PipelineSplit, spark: SparkOptions) -> dict[str, WayToWrite]:
    """By destination, how it is written on this Spark. The driver writes all of them record by record, or none."""
    destinations = split.graph.pipeline.destinations
    exactly_once = split.graph.pipeline.delivery == "exactly_once"
    reasons = {each.id: _why_driver(each.connector, spark, exactly_once=exactly_once) for each in destinations}
    shared: str | None
    if split.driver:
        shared = f"{split.driver[0]} needs all records in order, so they come back to the driver"
    else:
        shared = next(
            (f"{id} is written by the driver, so all records come back to it" for id in reasons if reasons[id]), None
        )
    return {
        each.id: WayToWrite("written by the driver", reasons[each.id] or shared or "")
        if reasons[each.id] or shared
        else _BY_EXECUTORS[isinstance(each.connector, ManyWriterDestination)]
        for each in destinations
    }


_BY_EXECUTORS = (
    WayToWrite("prepared by executors", "a part comes to the driver as one batch of bytes, which it writes in order"),
    WayToWrite(
        "staged by executors",
        "each task writes its part at the place itself, and the driver makes them visible, in the order of the input;"
        " if a task does not reach the place, the driver writes",
    ),
)


def _why_driver(connector: Any, spark: SparkOptions, *, exactly_once: bool) -> str | None:
    """Return why the driver has to write record by record; None if it has not."""
    if isinstance(connector, ManyWriterDestination):
        # M8: a task that writes has the credentials of the place.
        if not is_authenticated(spark.master, spark.conf):
            return _NO_SECRET
        return connector.stages_remotely(exactly_once=exactly_once)
    if isinstance(connector, PreparingDestination) and connector.prepares(exactly_once=exactly_once):
        return None
    return "executors cannot prepare what it writes" + (
        " with these options" if isinstance(connector, PreparingDestination) else ""
    )


def prepares(ways: Mapping[str, WayToWrite]) -> bool:
    """Whether executors prepare or stage everything that is written."""
    return all(each.way != "written by the driver" for each in ways.values())
