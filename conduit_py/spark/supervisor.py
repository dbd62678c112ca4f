"""SparkSupervisor: a pipeline over time, as any other, whose records are read and processed by Spark."""

import logging
from copy import copy
from functools import partial
from typing import Any

import msgspec
from conduit_connectors.spark.options import SparkOptions
from conduit_connectors.spark.session import shared

from conduit_py.graph.compile import DEAD_LETTERS, compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor, blocked_on
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.plugin import Connector
from conduit_py.sdk.preparing import PieceRefused, PreparingDestination
from conduit_py.spark.arrivals import arrivals, receipt
from conduit_py.spark.cut import Cut
from conduit_py.spark.plan import plan, prepares
from conduit_py.spark.remote import PART_SIZE, Equipment, Remote
from conduit_py.spark.tally import Tally
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress, Wait, WaitReason
from conduit_py.stream.run import Ending

log = logging.getLogger("conduit_py")


class SparkSupervisor(Supervisor):
    """Runs a pipeline between the executors of Spark, which read and process, and the driver, which writes.

    What the driver runs is a pipeline as on one machine, with the same ids, positions, delivery, dead letters and
    stop. Only its sources give outcomes in place of records, which are taken apart first; processors that keep
    state, and all behind them, run here as they do there. So every promise about records holds. Where all
    destinations can take what executors have made ready, the driver has little to do for a record; if they refuse
    to, it writes records by itself.
    """

    def __init__(
        self, pipeline: Pipeline, store: Store, *, spark: SparkOptions | None = None, part_size: int = PART_SIZE
    ) -> None:
        """Raises PipelineInvalid with everything in the pipeline that cannot run on Spark."""
        self._whole = compile_pipeline(pipeline)
        self._tally = Tally()
        self._cut = Cut(self._whole)
        self._prepares = prepares(self._cut)
        super().__init__(self._driven(agreed(pipeline, spark), part_size), store)

    def progress(self) -> Progress:
        """One look at the pipeline as the user wrote it down; processors count a task once it has come back."""
        seen = super().progress()
        for meter in seen.nodes:
            if meter.node in self._tally.held:
                # To the driver this one waits for its input. In truth it is held up as by a full window.
                meter.waits = [Wait(WaitReason.WINDOW)]
        seen = msgspec.structs.replace(seen, blocked_on=blocked_on(seen.nodes))
        meters = {meter.node: meter for meter in seen.nodes}
        if shared.starting is not None:
            seen = msgspec.structs.replace(seen, blocked_on=f"Spark, which is starting on {shared.starting}")
        if not meters:
            return seen
        nodes = [
            self._tally.seen_by(node.id, node.kind, meters.get(node.id), end=node.id not in self._cut.executors)
            for node in self._whole.nodes.values()
        ]
        filtered = sum(meter.filtered for meter in nodes if meter.kind == "processor")
        return msgspec.structs.replace(seen, nodes=[*nodes, meters[DEAD_LETTERS]], filtered=filtered)

    def _retries_at_once(self, ending: Ending) -> bool:
        if not isinstance(ending.error, PieceRefused) or not self._prepares or self._stop_requested.is_set():
            return super()._retries_at_once(ending)
        self._prepares = False
        log.warning("%s: the driver now writes record by record, because %s", self.pipeline.id, ending.error)
        return True

    def _driven(self, options: SparkOptions, part_size: int) -> Pipeline:
        """The pipeline that the driver runs."""
        planned, handler = plan(self._cut), self._whole.pipeline.dead_letters.handler
        driven = self._cut.driven(partial(arrivals, stops=handler == "stop"), receipt)
        for source in (each for each in driven.sources if each.letters_of is None):
            connector = sharing(source.connector, options)
            source.connector = Remote(source.id, connector, planned, options, self._tally, part_size, self._equipment)
        for destination in driven.destinations:
            destination.connector = sharing(destination.connector, options)
        if isinstance(handler, Connector):
            driven.dead_letters = copy(driven.dead_letters)
            driven.dead_letters.handler = sharing(handler, options)
        return driven

    def _equipment(self) -> Equipment | None:
        if not self._prepares:
            return None
        connectors = [each.connector for each in self._whole.pipeline.destinations]
        return {
            place: connector.fresh().equipment()
            for place, connector in enumerate(connectors)
            if isinstance(connector, PreparingDestination)
        }


def agreed(pipeline: Pipeline, spark: SparkOptions | None) -> SparkOptions:
    """The Spark to use: the one asked for, else the one that connectors of the pipeline name, else this machine."""
    handler = pipeline.dead_letters.handler
    ends = [each.connector for each in (*pipeline.sources, *pipeline.destinations)]
    theirs = [each.options for each in (*ends, handler) if isinstance(each, Connector)]
    named = [options for options in theirs if isinstance(options, SparkOptions)]
    chosen = spark or (named[0] if named else SparkOptions(master="local[*]"))
    conf = {name: value for options in named for name, value in options.conf.items()} | chosen.conf
    seconds = max([chosen.start_seconds, *(options.start_seconds for options in named)])
    return SparkOptions(master=_persistent(chosen.master), conf=conf, start_seconds=seconds)


def sharing(connector: Any, options: SparkOptions) -> Any:
    """The connector; one that uses Spark uses this one."""
    if not isinstance(connector.options, SparkOptions):
        return connector
    same = connector.fresh()
    asked = {"master": options.master, "conf": options.conf, "remote": None, "start_seconds": options.start_seconds}
    same._options = connector.options.model_copy(update=asked)
    return same


def _persistent(master: str) -> str:
    """On a cluster a task is tried four times; on one machine only once, unless it is asked for."""
    inside = master.removeprefix("local[").removesuffix("]")
    return f"local[{inside},4]" if master == f"local[{inside}]" and "," not in inside else master
