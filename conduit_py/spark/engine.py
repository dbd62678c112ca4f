"""The engine's face for commands: what a pipeline needs to run on its Spark, and what runs it there."""

from conduit_connectors.spark.java import require_java
from conduit_connectors.spark.options import SparkOptions

from conduit_py.errors import EnvironmentUnfit, FatalError
from conduit_py.pipeline import Pipeline
from conduit_py.spark.supervisor import SparkSupervisor, agreed
from conduit_py.store.store import Store


def supervised(pipeline: Pipeline, store: Store) -> SparkSupervisor:
    """What runs the pipeline, with this process as the driver of its Spark."""
    return SparkSupervisor(pipeline, store, spark=options_of(pipeline))


def options_of(pipeline: Pipeline) -> SparkOptions:
    """The Spark that a pipeline names; what it leaves open is as its connectors say, or this machine."""
    spark, rest = pipeline.spark, agreed(pipeline, None)
    if spark is None:
        return rest
    return SparkOptions(
        master=spark.master or rest.master,
        conf=rest.conf | spark.conf,
        start_seconds=spark.start_seconds or rest.start_seconds,
    )


def require_spark() -> None:
    """Return if there is a Java for Spark; EnvironmentUnfit says what to install."""
    try:
        require_java()
    except FatalError as error:
        raise EnvironmentUnfit(error.message, suggestion=error.suggestion) from error
