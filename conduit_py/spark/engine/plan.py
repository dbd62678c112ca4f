"""The part of a pipeline that executors run, pickled so that each of them can build it again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from conduit_py.errors import PipelineInvalid, Problem, describe
from conduit_py.graph.checks import spark_problems
from conduit_py.pipeline import Destination, Pipeline, Processor
from conduit_py.sdk.destination import PreparingDestination
from conduit_py.sdk.source import SplittableSource
from conduit_py.spark.engine.split import PipelineSplit


class Plan(NamedTuple):
    """What executors run, and the folder that it was written for: relative paths are meant from there."""

    pipeline: Pipeline
    folder: str


def prepares(split: PipelineSplit) -> bool:
    """Whether executors can make everything ready that is written: no record is needed here, and all allow it."""
    pipeline = split.graph.pipeline
    exactly_once = pipeline.delivery == "exactly_once"
    return not split.driver and all(
        isinstance(each.connector, PreparingDestination) and each.connector.prepares(exactly_once=exactly_once)
        for each in pipeline.destinations
    )


def plan(split: PipelineSplit) -> bytes:
    """What executors run, pickled: the user's code by value, for no executor has their file.

    What cannot run on Spark, or cannot be sent there, raises PipelineInvalid.
    """
    cloudpickle = _cloudpickle()
    pipeline = split.graph.pipeline
    problems = list(spark_problems(pipeline))
    if problems:
        raise PipelineInvalid(pipeline.id, problems)
    executed = _without_ends(split)
    with by_value(users_modules(pipeline)):
        for processor in executed.processors:
            try:
                cloudpickle.dumps(processor)
            except Exception as error:  # a border: what the user's objects do when they are pickled
                what = f"cannot be sent to executors: {describe(error)}"
                hint = "make connections, locks and open files in `open`, not where the file is loaded"
                place = processor.place or (None, None)
                problems.append(Problem(f"processors.{processor.id}", what, hint, *place))
        if problems:
            raise PipelineInvalid(pipeline.id, problems)
        pickled: bytes = cloudpickle.dumps(Plan(executed, str(Path.cwd())))
        return pickled


def splits(connector: object) -> bool:
    """Whether executors can read what this source reads, each a part of it."""
    return isinstance(connector, SplittableSource) and connector.splits()


def _without_ends(split: PipelineSplit) -> Pipeline:
    """What stays on the driver may well be something that only the driver can have."""
    executed = split.executed()
    for source in executed.sources:
        source.connector = source.connector if splits(source.connector) else None
    for destination in [] if prepares(split) else executed.destinations:
        destination.connector = None
    return executed


def _processors(pipeline: Pipeline) -> Iterator[Processor]:
    yield from pipeline.processors
    for end in (*pipeline.sources, *pipeline.destinations):
        yield from end.processors


def users_modules(pipeline: Pipeline) -> list[ModuleType]:
    """The modules in the folders where the pipeline is written down: what is installed is on the executors too."""
    declared: list[Pipeline | Processor | Destination] = [pipeline, *_processors(pipeline), *pipeline.destinations]
    folders = {Path(each.place.file).parent for each in declared if each.place}
    here = Path(__file__).parents[1]
    return [
        module
        for name, module in list(sys.modules.items())
        if (home := _home(module)) in folders and here not in (home, *home.parents) and name != "__main__"
    ]


def _home(module: ModuleType) -> Path:
    """The folder in which a top-level module or package stands; a pipeline file is known by its spec alone."""
    file = getattr(module, "__file__", None) or getattr(getattr(module, "__spec__", None), "origin", None)
    if not isinstance(file, str):
        return Path("/nowhere")
    parent = Path(file).parent
    return parent.parent if hasattr(module, "__path__") else parent


@contextmanager
def by_value(modules: list[ModuleType]) -> Iterator[None]:
    cloudpickle = _cloudpickle()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _cloudpickle() -> Any:
    from pyspark import cloudpickle

    return cloudpickle
