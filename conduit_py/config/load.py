"""load_file: the pipelines of a file, be it Python or YAML."""

import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conduit_py.config.loaded import Loaded, LoadedPipeline, LoadWarning, together
from conduit_py.config.python_file import FileInvalid, NoPipeline, load_pipelines
from conduit_py.config.yaml_file import SUFFIXES, load_yaml
from conduit_py.errors import EnvironmentUnfit, Problem
from conduit_py.pipeline import Pipeline


def load_file(file: Path) -> Loaded:
    """What is in a file: YAML by its suffix, Python otherwise.

    What is wrong with a YAML file or a pipeline in it is among the problems. A Python file that cannot
    be used raises FileInvalid or EnvironmentUnfit; its pipelines have not been checked yet.
    """
    return refuse_duplicate_ids(read_file(file))


def read_file(file: Path) -> Loaded:
    """The same before pipelines that share an id are refused, for several files may do so too."""
    if file.suffix.lower() in SUFFIXES and not file.is_dir():
        return load_yaml(file)
    return Loaded(tuple(_as_loaded(pipeline, file) for pipeline in load_pipelines(file)))


def refuse_duplicate_ids(loaded: Loaded) -> Loaded:
    """Refuse all pipelines that share an id: nobody can say which of them the stored positions belong to."""
    counts = Counter(pipeline.id for pipeline in loaded.pipelines)
    problems = [_repeated(each, loaded.pipelines) for each in loaded.pipelines if counts[each.id] > 1]
    pipelines = tuple(pipeline for pipeline in loaded.pipelines if counts[pipeline.id] == 1)
    return Loaded(pipelines, (*loaded.problems, *problems), loaded.warnings)


def _as_loaded(pipeline: Pipeline, file: Path) -> LoadedPipeline:
    """A pipeline of a Python file, which has a line in it unless it is made in a module beside the file."""
    line = pipeline.place.line if pipeline.place and Path(pipeline.place.file) == file.absolute() else None
    return LoadedPipeline(pipeline, file, line, "running", pipeline.id)


def _repeated(pipeline: LoadedPipeline, everything: Sequence[LoadedPipeline]) -> Problem:
    others = [each.place for each in everything if each.id == pipeline.id and each is not pipeline]
    message = f"the id {pipeline.id!r} is also used in {', '.join(others)}, so none of them is loaded"
    hint = "positions are kept by id, so each needs its own"
    return Problem("id", message, hint, str(pipeline.file), pipeline.line)


PATTERNS: Final = (".py", *SUFFIXES)


def load_folder(path: Path) -> Loaded:
    """Everything that loads, and all problems of what does not, of a folder or of a single file. Raises nothing.

    Files are read in the order of their names; folders below and files that begin with a dot or an
    underscore are left alone. Whatever is wrong with one file, the others are loaded. A pipeline file
    is code, so one that anybody may write to, or that is in such a folder, is refused.
    """
    files, refusal = list_files(path)
    return Loaded(problems=(refusal,)) if refusal else refuse_duplicate_ids(together(map(load_one, files)))


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
    named = [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]
    return [file for file in named if file.suffix.lower() in PATTERNS and not file.is_dir()]


def load_one(file: Path) -> Loaded:
    """What is in one file, before pipelines that share an id with those of others are refused. Raises nothing."""
    try:
        refusal = _writable_file(file) or _special_file(file)
        return Loaded(problems=(refusal,)) if refusal else read_file(file)
    except OSError as error:
        return Loaded(problems=(_unreadable(file, error),))
    except NoPipeline as nothing:
        # Modules that the pipelines import are in the same folder.
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
    """Even where a sticky bit protects the files of others, anybody can add one."""
    return _refusal(folder, "the folder") if folder.stat().st_mode & stat.S_IWOTH else None


def _writable_file(file: Path) -> Problem | None:
    """Whoever may write to the folder can replace the file, unless the folder is sticky."""
    if file.stat().st_mode & stat.S_IWOTH:
        return _refusal(file, "the file")
    mode = file.absolute().parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return _refusal(file.absolute().parent, "its folder", file)
    return None


def _special_file(file: Path) -> Problem | None:
    """To read a pipe waits for whoever writes to it, which may be nobody; meanwhile nothing else would be read."""
    if stat.S_ISREG(file.stat().st_mode):
        return None
    return Problem("", "is no regular file", "put the pipeline into a file of its own", str(file))


def _refusal(path: Path, what: str, file: Path | None = None) -> Problem:
    message = f"{what} can be written to by anybody, and pipelines are code"
    return Problem("", message, f"chmod o-w {path}", str(file or path))
