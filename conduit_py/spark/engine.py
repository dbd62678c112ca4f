"""The engine's face for commands: what runs a pipeline on the Spark that was asked for."""

from collections.abc import Callable

from conduit_connectors.spark.options import SparkOptions

from conduit_py.pipeline import Pipeline
from conduit_py.spark.supervisor import SparkSupervisor
from conduit_py.store.store import Store


def supervised_on(master: str | None) -> Callable[[Pipeline, Store], SparkSupervisor]:
    """Makes supervisors that use this master; None: the one that connectors of the pipeline name, or this machine."""
    spark = None if master is None else SparkOptions(master=master)

    def supervised(pipeline: Pipeline, store: Store) -> SparkSupervisor:
        return SparkSupervisor(pipeline, store, spark=spark)

    return supervised
