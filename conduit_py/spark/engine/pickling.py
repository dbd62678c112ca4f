"""Pickles pipelines for other processes: the user's own modules by value, because no other process has their files."""

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from conduit_py.errors import PipelineInvalid, Problem, describe
from conduit_py.pipeline import Destination, Pipeline, Processor
from conduit_py.sdk.plugin import Place

Part = tuple[str, object, Place | None]
"""Something in a pipeline: its path in the definition, the thing itself, and where the user wrote it."""

# cloudpickle keeps the modules that go by value for the whole process: two threads must not change them at once.
_LOCK = threading.Lock()
_HINT = "make connections, locks and open files in `open`, not where the file is loaded"


def pickle_pipeline(pipeline: Pipeline, content: object, parts: Iterable[Part], where: str) -> bytes:
    """Pickle `content`, which is made of the pipeline.

    Raises PipelineInvalid, naming every part that cannot be sent `where`, and ImportError without pyspark.
    """
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    with _LOCK, _by_value(cloudpickle, users_modules(pipeline)):
        # Each part by itself: an error about the whole would not name the part.
        problems = [
            Problem(path, f"cannot be sent to {where}: {reason}", _HINT, *(place or (None, None)))
            for path, part, place in parts
            if (reason := _obstacle(cloudpickle, part)) is not None
        ]
        if problems:
            raise PipelineInvalid(pipeline.id, problems)
        pickled: bytes = cloudpickle.dumps(content)
        return pickled


def parts_of(pipeline: Pipeline) -> Iterator[Part]:
    """Everything in a pipeline that can hold objects of the user."""
    for source in pipeline.sources:
        yield f"sources.{source.id}", source, source.place
    yield from processors_of(pipeline)
    for destination in pipeline.destinations:
        yield f"destinations.{destination.id}", destination, destination.place
    yield "dead_letters", pipeline.dead_letters, pipeline.dead_letters.place or pipeline.place


def processors_of(pipeline: Pipeline) -> Iterator[Part]:
    for processor in pipeline.processors:
        yield f"processors.{processor.id}", processor, processor.place


def users_modules(pipeline: Pipeline) -> list[ModuleType]:
    """The modules in the folders of the files that define the pipeline. Installed packages are not among them."""
    processors = [*pipeline.processors]
    for end in pipeline.ends:
        processors += end.processors
    declared: list[Pipeline | Processor | Destination] = [pipeline, *processors, *pipeline.destinations]
    folders = {Path(each.place.file).parent for each in declared if each.place}
    ours = Path(__file__).parents[2]
    return [
        module
        # A copy: another thread may import while this runs.
        for name, module in list(sys.modules.items())
        if (folder := _folder_of(module)) in folders and ours not in (folder, *folder.parents) and name != "__main__"
    ]


def _folder_of(module: ModuleType) -> Path:
    """The folder in which a top-level module or package is; a pipeline file has its path in its spec alone."""
    file = getattr(module, "__file__", None) or getattr(getattr(module, "__spec__", None), "origin", None)
    if not isinstance(file, str):
        return Path("/nowhere")
    parent = Path(file).parent
    return parent.parent if hasattr(module, "__path__") else parent


@contextmanager
def _by_value(cloudpickle: Any, modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _obstacle(cloudpickle: Any, part: object) -> str | None:
    try:
        cloudpickle.dumps(part)
    except Exception as error:  # a plugin boundary: the user's objects run code when they are pickled
        return describe(error)
    return None
