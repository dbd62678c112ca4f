"""The part of a pipeline that executors run, pickled so that each of them can build it again."""

from pathlib import Path
from typing import NamedTuple

from conduit_py.errors import PipelineInvalid
from conduit_py.graph.checks import spark_problems
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.destination import PreparingDestination
from conduit_py.sdk.source import SplittableSource
from conduit_py.spark.engine.pickling import pickle_pipeline, processors_of
from conduit_py.spark.engine.split import PipelineSplit


class Plan(NamedTuple):
    """What executors run, and the driver's working directory, from which relative paths are meant."""

    pipeline: Pipeline
    folder: str


def plan(split: PipelineSplit) -> bytes:
    """What executors run, pickled. What cannot run on Spark, or cannot be sent there, raises PipelineInvalid."""
    pipeline = split.graph.pipeline
    problems = list(spark_problems(pipeline))
    if problems:
        raise PipelineInvalid(pipeline.id, problems)
    prepared = prepares(split)
    # A connector that stays on the driver may hold what only the driver can have, so it is not pickled.
    executed = split.executor_pipeline(
        source=lambda connector: connector if splits(connector) else None,
        destination=lambda connector: connector if prepared else None,
    )
    return pickle_pipeline(pipeline, Plan(executed, str(Path.cwd())), processors_of(executed), "executors")


def prepares(split: PipelineSplit) -> bool:
    """Whether executors prepare everything that is written: no processor runs here, and all destinations allow it."""
    pipeline = split.graph.pipeline
    exactly_once = pipeline.delivery == "exactly_once"
    return not split.driver and all(
        isinstance(each.connector, PreparingDestination) and each.connector.prepares(exactly_once=exactly_once)
        for each in pipeline.destinations
    )


def splits(connector: object) -> bool:
    """Whether executors can read this source, each a part of it."""
    return isinstance(connector, SplittableSource) and connector.splits()
