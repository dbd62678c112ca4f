"""ChildDefinition: a pipeline as bytes, of which another process on this machine makes the same pipeline again."""

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from conduit_py.backoff import Recovery
from conduit_py.errors import FatalError, PipelineInvalid, Problem, describe
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.options import Place
from conduit_py.spark.child_link import Begin
from conduit_py.spark.plan import by_value, users_modules


def definition(pipeline: Pipeline, recovery: Recovery) -> Begin:
    """What a child is told to run: the pipeline as the server has it, whatever its file says by now.

    Raises FatalError when it cannot be sent, or there is no Spark to send it for.
    """
    try:
        pickled = _pickled(pipeline)
    except PipelineInvalid as error:
        raise FatalError(error.message, suggestion=error.suggestion) from error
    except ImportError as error:
        what = f"the engine spark needs pyspark, not installed here: {error}"
        raise FatalError(what, suggestion="pip install 'conduit-dataflow[spark]'") from error
    debug = logging.getLogger("conduit_py").isEnabledFor(logging.DEBUG)
    return Begin(pickled, recovery.model_dump_json(), sys.path, debug)


def _pickled(pipeline: Pipeline) -> bytes:
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    # One at a time: which modules go by value is known to the whole process.
    with _LOCK, by_value(users_modules(pipeline)):
        problems = [
            Problem(path, f"cannot be sent to a process of its own: {why}", _HINT, *(place or (None, None)))
            for path, part, place in _parts(pipeline)
            if (why := _obstacle(cloudpickle, part)) is not None
        ]
        if problems:
            raise PipelineInvalid(pipeline.id, problems)
        pickled: bytes = cloudpickle.dumps(pipeline)
        return pickled


_LOCK = threading.Lock()
_HINT = "make connections, locks and open files in `open`, not where the file is loaded"


def _parts(pipeline: Pipeline) -> Iterator[tuple[str, object, Place | None]]:
    for source in pipeline.sources:
        yield f"sources.{source.id}", source, source.place
    for processor in pipeline.processors:
        yield f"processors.{processor.id}", processor, processor.place
    for destination in pipeline.destinations:
        yield f"destinations.{destination.id}", destination, destination.place
    yield "dead_letters", pipeline.dead_letters, pipeline.dead_letters.place or pipeline.place


def _obstacle(cloudpickle: Any, part: object) -> str | None:
    try:
        cloudpickle.dumps(part)
    except Exception as error:  # a border: what the user's objects do when they are pickled
        return describe(error)
    return None
