"""load_file: the pipelines of a file, be it Python or YAML."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from conduit_py.config.loaded import Loaded, LoadedPipeline
from conduit_py.config.python_file import load_pipelines
from conduit_py.config.yaml_file import SUFFIXES, load_yaml
from conduit_py.errors import Problem
from conduit_py.pipeline import Pipeline


def load_file(file: Path) -> Loaded:
    """What is in a file: YAML by its suffix, Python otherwise.

    What is wrong with a YAML file or a pipeline in it is among the problems. A Python file that cannot
    be used raises FileInvalid or EnvironmentUnfit; its pipelines have not been checked yet.
    """
    return without_repeated(read_file(file))


def read_file(file: Path) -> Loaded:
    """The same before pipelines that share an id are refused, for several files may do so too."""
    if file.suffix.lower() in SUFFIXES and not file.is_dir():
        return load_yaml(file)
    return Loaded(tuple(_loaded(pipeline, file) for pipeline in load_pipelines(file)))


def without_repeated(loaded: Loaded) -> Loaded:
    """Refuse all pipelines that share an id: nobody can say which of them the stored positions belong to."""
    counts = Counter(pipeline.id for pipeline in loaded.pipelines)
    problems = [_repeated(each, loaded.pipelines) for each in loaded.pipelines if counts[each.id] > 1]
    pipelines = tuple(pipeline for pipeline in loaded.pipelines if counts[pipeline.id] == 1)
    return Loaded(pipelines, (*loaded.problems, *problems), loaded.warnings)


def _loaded(pipeline: Pipeline, file: Path) -> LoadedPipeline:
    """A pipeline of a Python file, which has a line in it unless it is made in a module beside the file."""
    line = pipeline.place.line if pipeline.place and Path(pipeline.place.file) == file.absolute() else None
    return LoadedPipeline(pipeline, file, line, "running", pipeline.id)


def _repeated(pipeline: LoadedPipeline, everything: Sequence[LoadedPipeline]) -> Problem:
    others = [each.place for each in everything if each.id == pipeline.id and each is not pipeline]
    message = f"the id {pipeline.id!r} is also used in {', '.join(others)}, so none of them is loaded"
    hint = "positions are kept by id, so each needs its own"
    return Problem("id", message, hint, str(pipeline.file), pipeline.line)
