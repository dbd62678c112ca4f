"""The engine as a contender: a file through a processor into a file, by the executors of a session that is warm."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import trio
from conduit_connectors import file

from benchmarks.spark_work import change
from benchmarks.workload import dropped
from conduit_py import Destination, Pipeline, Record, Source, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.spark.engine.remote_source import PART_SIZE
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.store import Store, open_store

Delivery = Literal["at_least_once", "exactly_once"]
Supervise = Callable[[Pipeline, Store], Supervisor]


@processor
def changed(record: Record) -> Record | None:
    order: Any = record.payload.after
    if dropped(order):
        return None
    change(order)
    return record


def copying(source: Path, out: Path, delivery: Delivery) -> Pipeline:
    return Pipeline(
        "orders",
        sources=[Source("in", file.Source(path=source, format="json"))],
        processors=[changed],
        destinations=[Destination("out", file.Destination(path=out, format="json"))],
        delivery=delivery,
    )


def run(source: Path, out: Path, delivery: Delivery, spark: SparkOptions) -> None:
    """On Spark, from nothing to everything written and synced, with the state in a folder of its own."""
    _run(on_spark(spark), source, out, delivery)


def on_spark(spark: SparkOptions, part_size: int = PART_SIZE) -> Supervise:
    return lambda pipeline, store: SparkSupervisor(pipeline, store, spark=spark, part_size=part_size)


def run_here(source: Path, out: Path, delivery: Delivery) -> None:
    """The same on the engine for one machine, in this process."""
    _run(Supervisor, source, out, delivery)


def _run(supervise: Supervise, source: Path, out: Path, delivery: Delivery) -> None:
    out.unlink(missing_ok=True)
    state = out.with_suffix(".state")
    shutil.rmtree(state, ignore_errors=True)
    trio.run(to_end, copying(source, out, delivery), state, supervise)


async def to_end(pipeline: Pipeline, state: Path, supervise: Supervise) -> None:
    async with await open_store(state) as store:
        ended = await supervise(pipeline, store).run()
        assert ended.status is Status.COMPLETED, ended.error
