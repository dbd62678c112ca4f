"""SparkSupervisor: runs a pipeline like any other supervisor, while Spark reads and processes its records."""

import logging
from functools import partial
from typing import Any

import msgspec
import trio

from conduit_py.errors import EnvironmentUnfit, FatalError
from conduit_py.graph.compile import DEAD_LETTERS, as_graph
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Destination, Pipeline, Source
from conduit_py.sdk.destination import ManyWriterDestination, PieceRefused
from conduit_py.sdk.plugin import Connector
from conduit_py.spark.engine.executors import ExecutorCounts
from conduit_py.spark.engine.outcome import PreparedWrites
from conduit_py.spark.engine.remote_source import PART_SIZE, Equipment, JobSettings, RemoteSource
from conduit_py.spark.engine.split import PipelineSplit, plan, prepares, ways_to_write
from conduit_py.spark.session.java import require_java
from conduit_py.spark.session.shared_session import SparkOptions, shared
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress, Wait, WaitReason, blocked_on
from conduit_py.stream.plugin_calls import PluginErrors
from conduit_py.stream.run import Ending

log = logging.getLogger("conduit_py")


class SparkSupervisor(Supervisor):
    """Runs a pipeline between the executors of Spark, which read and process, and the driver, which writes.

    The driver runs a pipeline as on one machine, with the same ids, positions, delivery, dead letters and stop. Its
    sources give outcomes instead of records, which are decoded first. Processors that keep state, and all behind
    them, run here. So every guarantee about records holds. If all destinations take prepared batches or manifests of
    what tasks have staged, the driver has little to do for a record. When one refuses that, it writes record by record.
    """

    def __init__(
        self,
        definition: Pipeline | Graph,
        store: Store,
        *,
        spark: SparkOptions | None = None,
        part_size: int = PART_SIZE,
    ) -> None:
        """Raises PipelineInvalid with everything in the pipeline that cannot run on Spark."""
        self._whole = as_graph(definition)
        self._counts = ExecutorCounts()
        self._split = PipelineSplit(self._whole)
        options = shared_options(self._whole.pipeline, spark)
        self._prepares = prepares(ways_to_write(self._split, options))
        super().__init__(self._driver_pipeline(options, part_size), store)

    def progress(self) -> Progress:
        """The progress of the pipeline as the user defined it. Counts of executors are added when their task ends."""
        seen = super().progress()
        for meter in seen.nodes:
            if meter.node in self._counts.held:
                # On the driver it waits for input, but the reason is the bound on outcomes: a full window.
                meter.waits = [Wait(WaitReason.WINDOW)]
        seen = msgspec.structs.replace(seen, blocked_on=blocked_on(seen.nodes))
        meters = {meter.node: meter for meter in seen.nodes}
        if shared.starting is not None:
            seen = msgspec.structs.replace(seen, blocked_on=f"Spark, which is starting on {shared.starting}")
        if not meters:
            return seen
        nodes = [
            self._counts.seen_by(node.id, node.kind, meters.get(node.id), end=node.id not in self._split.executors)
            for node in self._whole.nodes.values()
        ]
        filtered = sum(meter.filtered for meter in nodes if meter.kind == "processor")
        return msgspec.structs.replace(seen, nodes=[*nodes, meters[DEAD_LETTERS]], filtered=filtered)

    def _retries_at_once(self, ending: Ending) -> bool:
        if not isinstance(ending.error, PieceRefused) or not self._prepares or self._stop_requested.is_set():
            return super()._retries_at_once(ending)
        # Only writing record by record shows which record the destination refuses.
        self._prepares = False
        for adapter in self._adapters:
            adapter.whole = False
        log.warning("%s: the driver now writes record by record, because %s", self.pipeline.id, ending.error)
        return True

    def _driver_pipeline(self, options: SparkOptions, part_size: int) -> Pipeline:
        planned = plan(self._split, options, prepared=self._prepares)
        settings = JobSettings(planned, options, self._counts, part_size, self._equipment)
        places = {source.id: place for place, source in enumerate(self._whole.pipeline.sources)}

        def read_outcomes(source: Source) -> RemoteSource:
            connector, place = with_shared_session(source.connector, options), places[source.id]
            return RemoteSource(source.id, place, connector, settings)

        pipeline = self._split.driver_pipeline(read_outcomes, partial(with_shared_session, options=options))
        adapters = [each.write_adapter for each in pipeline.destinations]
        self._adapters = [each for each in adapters if isinstance(each, PreparedWrites)]
        for adapter in self._adapters:
            adapter.whole = self._prepares
        return pipeline

    async def _equipment(self) -> Equipment | None:
        """What tasks need to prepare or stage what is written; None if the driver writes record by record."""
        if not self._prepares:
            return None
        destinations = self._whole.pipeline.destinations
        given = {
            place: await _equip(each, adapter)
            for place, (each, adapter) in enumerate(zip(destinations, self._adapters, strict=True))
        }
        staged = all(isinstance(each.connector, ManyWriterDestination) for each in destinations)
        return Equipment(given, staged)


async def _equip(declared: Destination, adapter: PreparedWrites) -> bytes:
    connector: Any = declared.connector
    if isinstance(connector, ManyWriterDestination):
        # Of the instance that was opened, and has begun: destinations are, before any source is opened.
        assert adapter.call is not None
        with PluginErrors(declared.id, "grant"):
            granted: bytes = await adapter.call("grant")
            return granted
    equipment: bytes = await trio.to_thread.run_sync(connector.fresh().equipment, abandon_on_cancel=True)
    return equipment


def shared_options(pipeline: Pipeline, spark: SparkOptions | None) -> SparkOptions:
    """The Spark to use: the one given, else that of the pipeline's connectors, else this machine."""
    ends = [each.connector for each in pipeline.ends]
    theirs = [each.options for each in (*ends, pipeline.dead_letters.policy.connector) if isinstance(each, Connector)]
    named = [options for options in theirs if isinstance(options, SparkOptions)]
    chosen = spark or (named[0] if named else SparkOptions(master="local[*]"))
    conf = {name: value for options in named for name, value in options.conf.items()} | chosen.conf
    seconds = max([chosen.start_seconds, *(options.start_seconds for options in named)])
    # Without `remote`: Spark Connect has no SparkContext, with which tasks are started.
    return SparkOptions(master=_persistent(chosen.master), conf=conf, start_seconds=seconds)


def with_shared_session(connector: Any, options: SparkOptions) -> Any:
    """The connector; if it uses Spark, one that uses the Spark with these options."""
    if not isinstance(connector.options, SparkOptions):
        return connector
    asked = {"master": options.master, "conf": options.conf, "remote": None, "start_seconds": options.start_seconds}
    return connector.with_options(connector.options.model_copy(update=asked))


def _persistent(master: str) -> str:
    """The same master, on which a failed task is tried four times. In local mode Spark tries it once by default."""
    inside = master.removeprefix("local[").removesuffix("]")
    return f"local[{inside},4]" if master == f"local[{inside}]" and "," not in inside else master


def spark_supervisor(definition: Pipeline | Graph, store: Store) -> SparkSupervisor:
    """The supervisor of a pipeline, with this process as the driver of its Spark."""
    graph = as_graph(definition)
    return SparkSupervisor(graph, store, spark=options_of(graph.pipeline))


def options_of(pipeline: Pipeline) -> SparkOptions:
    """The Spark of a pipeline; what it leaves open is taken from its connectors, or it is this machine."""
    spark, rest = pipeline.spark, shared_options(pipeline, None)
    if spark is None:
        return rest
    return SparkOptions(
        master=spark.master or rest.master,
        conf=rest.conf | spark.conf,
        start_seconds=spark.start_seconds or rest.start_seconds,
    )


def require_spark() -> None:
    """Check that there is a Java for Spark. Raises EnvironmentUnfit, with what to install."""
    try:
        require_java()
    except FatalError as error:
        raise EnvironmentUnfit(error.message, suggestion=error.suggestion) from error
