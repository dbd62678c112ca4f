"""load_file and load_folder: the pipelines of a file, Python or YAML, or of a folder of such files."""

import stat
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from conduit_py.config.code_trust import Exposure
from conduit_py.config.loaded import Loaded, LoadedPipeline, LoadWarning, combine
from conduit_py.config.python_file import FileInvalid, NoPipeline, check_trusted, load_pipelines
from conduit_py.config.yaml_file import SUFFIXES, load_yaml
from conduit_py.errors import EnvironmentUnfit, Problem
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.secrets import SecretReading, collect_secrets


def load_file(file: Path) -> Loaded:
    """The pipelines of a file: YAML by its suffix, Python otherwise.

    Problems of a YAML file and of the pipelines in it are in the result. A Python file that cannot be used
    raises FileInvalid or EnvironmentUnfit; its pipelines are not checked until their `graph` is asked for.
    """
    return refuse_duplicate_ids(read_file(file))


def read_file(file: Path) -> Loaded:
    """Like load_file, without refusing pipelines that share an id: that is decided for all files together."""
    # Before the file is opened: its code runs with our permissions.
    check_trusted(file)
    if file.suffix.lower() in SUFFIXES and not file.is_dir():
        loaded = load_yaml(file)
    else:
        with collect_secrets(file.absolute().parent) as reader:
            pipelines = load_pipelines(file)
        secrets = tuple(reader.readings.values())
        loaded = Loaded(tuple(_loaded_pipeline(pipeline, file, secrets) for pipeline in pipelines))
    deprecated = [warning for each in loaded.pipelines for warning in _deprecated_options(each)]
    return loaded._replace(warnings=(*loaded.warnings, *deprecated))


def _deprecated_options(loaded: LoadedPipeline) -> Iterator[LoadWarning]:
    """A warning for each option of a connector that has another name now. It works as before."""
    for node in loaded.pipeline.ends:
        connector = node.connector
        # One without our `__init__` has no list of them.
        if connector is None or getattr(connector, "problems", True):
            continue
        for name in sorted(connector.options.model_fields_set):
            field = type(connector.options).model_fields[name]
            if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("deprecated"):
                place = node.place or (str(loaded.file), loaded.line)
                yield LoadWarning(f"{loaded.id}.{node.id}.{name}", field.description or "is deprecated", None, *place)


def refuse_duplicate_ids(loaded: Loaded) -> Loaded:
    """Refuse all pipelines that share an id: the stored positions could belong to any of them."""
    # All of them, not all but one: which one is first depends on the names of files, and must decide nothing.
    counts = Counter(pipeline.id for pipeline in loaded.pipelines)
    problems = [_duplicate_problem(each, loaded.pipelines) for each in loaded.pipelines if counts[each.id] > 1]
    pipelines = tuple(pipeline for pipeline in loaded.pipelines if counts[pipeline.id] == 1)
    return Loaded(pipelines, (*loaded.problems, *problems), loaded.warnings)


def _loaded_pipeline(pipeline: Pipeline, file: Path, secrets: Collection[SecretReading]) -> LoadedPipeline:
    """A pipeline of a Python file. It has a line, unless it was made in a module beside the file."""
    line = pipeline.place.line if pipeline.place and Path(pipeline.place.file) == file.absolute() else None
    return LoadedPipeline(pipeline, file, line, "running", pipeline.id, secrets=secrets)


def _duplicate_problem(pipeline: LoadedPipeline, everything: Sequence[LoadedPipeline]) -> Problem:
    others = [each.place for each in everything if each.id == pipeline.id and each is not pipeline]
    message = f"the id {pipeline.id!r} is also used in {', '.join(others)}, so none of them is loaded"
    hint = "positions are kept by id, so each needs its own"
    return Problem("id", message, hint, str(pipeline.file), pipeline.line)


PATTERNS: Final = (".py", *SUFFIXES)


def load_folder(path: Path) -> Loaded:
    """The usable pipelines of a folder or a single file, and all problems with the rest. Raises nothing.

    Files are loaded in the order of their names. Subfolders, and files that begin with a dot or an underscore, are
    ignored. A problem in one file does not affect the others. A pipeline file is code, so one that anybody may
    write to, or that is in such a folder, is refused.
    """
    files, refusal = list_files(path)
    if refusal:
        return Loaded(problems=(refusal,))
    return warn_if_empty(path, refuse_duplicate_ids(combine(map(load_one, files))))


def warn_if_empty(path: Path, loaded: Loaded) -> Loaded:
    """Add a warning that says where to look if a folder has no pipeline, as the root of a project."""
    if loaded.pipelines or loaded.problems or not path.is_dir():
        return loaded
    searched = "it is searched for *.py, *.yaml and *.yml, its subfolders are not"
    found = _subfolders_with_files(path)
    # The folder that `init` makes comes first: folders of modules and tests have Python files too.
    found = [each for each in found if each.name == "pipelines"] or found
    hint = f"; did you mean {' or '.join(str(each) for each in found[:3])}?" if found else ""
    warning = LoadWarning("", "there is no pipeline in this folder", searched + hint, str(path))
    return loaded._replace(warnings=(*loaded.warnings, warning))


def _subfolders_with_files(folder: Path) -> list[Path]:
    found = []
    for each in sorted(folder.iterdir()):
        # What cannot be read is only not proposed.
        with suppress(OSError):
            if each.is_dir() and not each.name.startswith((".", "_")) and _files(each):
                found.append(each)
    return found


def list_files(path: Path) -> tuple[list[Path], Problem | None]:
    """The pipeline files of a folder, or a single file; or why none of them may be read."""
    try:
        if not path.is_dir():
            return [path], None
        refusal = _writable_folder(path)
        return ([], refusal) if refusal else (_files(path), None)
    except OSError as error:
        return [], _unreadable(path, error)


def _files(folder: Path) -> list[Path]:
    # Sorted, so that problems come in the same order on every file system.
    named = [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]
    return [file for file in named if file.suffix.lower() in PATTERNS and not file.is_dir()]


def load_one(file: Path) -> Loaded:
    """The pipelines of one file, before those that share an id with others are refused. Raises nothing."""
    try:
        refusal = _special_file(file)
        return Loaded(problems=(refusal,)) if refusal else read_file(file)
    except OSError as error:
        return Loaded(problems=(_unreadable(file, error),))
    except NoPipeline as nothing:
        # No problem: it may be a module that pipelines in the same folder import.
        (problem,) = nothing.problems
        warning = LoadWarning("", problem.message, "begin its name with _ if it is only imported", str(file))
        return Loaded(warnings=(warning,))
    except FileInvalid as invalid:
        return Loaded(problems=invalid.problems)
    except EnvironmentUnfit as unfit:
        return Loaded(problems=(Problem("", unfit.message, unfit.suggestion, str(file)),))


def _unreadable(path: Path, error: OSError) -> Problem:
    what = (
        "there is no such file or folder"
        if isinstance(error, FileNotFoundError)
        else f"cannot be read: {error.strerror}"
    )
    return Problem("", what, None, str(path))


def _writable_folder(folder: Path) -> Problem | None:
    """A sticky bit protects the files that are there, but anybody could add one."""
    if folder.stat().st_mode & stat.S_IWOTH:
        exposure = Exposure(folder, "the folder")
        return Problem("", exposure.message, exposure.suggestion, str(folder))
    return None


def _special_file(file: Path) -> Problem | None:
    """Reading a pipe could block for ever, and no other file would be loaded meanwhile."""
    if stat.S_ISREG(file.stat().st_mode):
        return None
    return Problem("", "is not a regular file", "put the pipeline into a file of its own", str(file))
