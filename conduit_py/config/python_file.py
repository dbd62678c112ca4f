"""Loads the pipelines at the top level of a Python file; its errors name the user's own lines."""

import builtins
import hashlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from pydantic import ValidationError

from conduit_py.config.code_trust import ModuleExposed, ModuleGuard, find_exposure
from conduit_py.defaults import OUR_PACKAGES
from conduit_py.errors import ConduitError, EnvironmentUnfit, PipelineInvalid, Problem, describe
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.plugin import Place, did_you_mean, model_problems
from conduit_py.sdk.registry import what_to_install
from conduit_py.user_errors import as_error


class FileInvalid(ConduitError):
    """The file cannot be used; `problems` says why, and where in it."""

    code = "file.invalid"

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__(f"{file} cannot be used:\n" + "\n".join(f"  {problem}" for problem in problems))


class NoPipeline(FileInvalid):
    """The file has no errors, but no pipeline at its top level either: it may be a module for others to import."""

    code = "file.no_pipeline"


def load_pipelines(file: Path) -> list[Pipeline]:
    """Every pipeline at the top level of a Python file, in the order written.

    The file is executed; no pipeline is checked or started. An error in the file raises FileInvalid, a package that
    is not installed EnvironmentUnfit. The file can import modules beside it, but these never hide a module of the
    standard library or an installed one.
    """
    module = _run(file)
    # By identity: one pipeline under two names is one, while two with the same id are a problem.
    pipelines = list({id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}.values())
    if not pipelines:
        raise NoPipeline(file, [_no_pipeline(file, module)])
    return pipelines


def choose(file: Path, pipelines: Sequence[Pipeline], id: str | None) -> list[Pipeline]:
    """The pipeline with this id, or all of them for None."""
    if id is None:
        return list(pipelines)
    chosen = [pipeline for pipeline in pipelines if pipeline.id == id]
    if not chosen:
        ids = [pipeline.id for pipeline in pipelines]
        hint = did_you_mean(id, ids) or f"it has {', '.join(ids)}"
        raise FileInvalid(file, [Problem("", f"has no pipeline {id!r}", hint, str(file))])
    return chosen


def _run(file: Path) -> ModuleType:
    path = file.absolute()
    _check_readable(file)
    name = _module_name(path)
    # From a file location, so that the module has a `__file__`: pipelines find their data by `Path(__file__).parent`.
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Before it runs: its imports of modules beside it happen while it runs.
    _guard.protect(path.parent)
    _make_importable(path.parent)
    # Registered before it runs: dataclasses and pickle look a class's module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # SystemExit too: a script that calls sys.exit() at its top level must not end a server that loads it.
    except BaseException as error:
        # A module that was executed only in part must not be found by a later import.
        del sys.modules[name]
        _raise_for(as_error(error), file, path)
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles the file each time: a .pyc is compared by whole seconds, so it would hide an edit made within one."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("not cached")


def _module_name(path: Path) -> str:
    """A unique module name for every file, so that an `orders.py` or even a `json.py` hides no other module."""
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    return f"conduit_file_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"


def _check_readable(file: Path) -> None:
    if file.is_dir():
        candidates = sorted(found.name for found in file.glob("*.py"))
        hint = f"name a file in it, such as {file / candidates[0]}" if candidates else "name a Python file"
        raise FileInvalid(file, [Problem("", "is a folder, not a Python file", hint, str(file))])
    if not file.exists():
        nearby = [found.name for found in file.parent.glob("*.py")] if file.parent.is_dir() else []
        hint = did_you_mean(file.name, nearby) or "`conduit-py quickstart --write FILE` writes one to start from"
        raise FileInvalid(file, [Problem("", "there is no such file", hint, str(file))])
    if file.suffix in {".yaml", ".yml", ".json", ".toml"}:
        hint = "write the pipeline in Python: `conduit-py quickstart --write FILE.py` shows how"
        raise FileInvalid(file, [Problem("", f"is a {file.suffix} file, not a Python file", hint, str(file))])
    try:
        file.open("rb").close()
    except OSError as error:
        raise EnvironmentUnfit(f"{file} cannot be read: {error.strerror}") from error


def check_trusted(file: Path) -> None:
    """Raise FileInvalid for a file that anybody could have changed: it is code, and would run with our permissions."""
    exposure = find_exposure(file) if file.exists() else None
    if exposure is not None:
        raise FileInvalid(file, [Problem("", exposure.message, exposure.suggestion, str(file))])


_guard = ModuleGuard()
_directories: list[str] = []
"""The folders put on sys.path for pipeline files, newest first."""


def _make_importable(directory: Path) -> None:
    """Put a file's folder at the end of sys.path, before those of other pipeline files.

    It stays there, for imports inside functions. At the end it can hide nothing: a `queue.py` beside a pipeline
    must not break the next import of the standard library's.
    """
    folder = str(directory)
    _forget_namesakes(directory)
    _directories[:] = [other for other in _directories if other in sys.path]
    sys.path[:] = [entry for entry in sys.path if entry not in _directories]
    if folder not in sys.path:
        _directories[:] = [folder, *(other for other in _directories if other != folder)]
    sys.path.extend(_directories)


def _forget_namesakes(directory: Path) -> None:
    """Two pipeline files in different folders may each have a `lookup.py`; each must import its own."""
    foreign = {*_directories} - {str(directory)}
    if not foreign:
        return
    # Copies: entries are deleted below, and other threads may import meanwhile. Folders as texts, of top-level modules
    # only: a large process has thousands of modules, and a server loads hundreds of files.
    tops = [name for name, module in list(sys.modules.items()) if "." not in name and _folder_of(module) in foreign]
    hidden = {name for name in tops if _beside(directory, name)}
    for name in list(sys.modules) if hidden else ():
        if name.partition(".")[0] in hidden:
            del sys.modules[name]


def _folder_of(module: ModuleType) -> str | None:
    """The folder that contains a top-level module or package."""
    origin: str | None = getattr(module, "__file__", None)
    if origin is None:
        return None
    parent = os.path.dirname(origin)
    return os.path.dirname(parent) if hasattr(module, "__path__") else parent


def _beside(directory: Path, name: str) -> bool:
    spec = PathFinder.find_spec(name, [str(directory)])
    return spec is not None and spec.origin is not None


def _raise_for(error: Exception, file: Path, path: Path) -> NoReturn:
    """Translate what the file raised, once, into an error that names the user's own line."""
    if isinstance(error, EnvironmentUnfit):
        raise error
    if isinstance(error, PipelineInvalid):
        raise FileInvalid(file, error.problems) from error
    # Before the line is looked up: a syntax error has no frame in the file, it names its own line.
    if isinstance(error, SyntaxError):
        raise FileInvalid(file, [_syntax_problem(error, path)]) from error
    where, line = _users_line(error, path)
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        near = did_you_mean(error.name, [*OUR_PACKAGES, *_modules_in([str(path.parent)])])
        raise EnvironmentUnfit(
            f"{where}:{line}: imports {error.name!r}, which is neither installed nor next to the file",
            suggestion=what_to_install(error) or near or f"check the spelling, or install it for {sys.executable}",
        ) from error
    if isinstance(error, ValidationError):
        raise FileInvalid(file, model_problems(error, Place(where, line or 0))) from error
    hint = _import_hint(error, path) if isinstance(error, ImportError) else _name_hint(error)
    if isinstance(error, ConduitError):
        hint = error.suggestion
    if isinstance(error, ModuleExposed):
        raise FileInvalid(file, [Problem("", str(error), error.suggestion, where, line)]) from error
    what = "calls sys.exit() while it loads" if isinstance(error.__cause__, SystemExit) else describe(error)
    raise FileInvalid(file, [Problem("", what, hint, where, line)]) from error


def _syntax_problem(error: SyntaxError, path: Path) -> Problem:
    text = (error.text or "").strip()
    # A line with a quote may hold a password, which nobody has learned yet.
    if re.search("[\"']", text):
        text = ""
    return Problem("", f"{error.msg}" + (f": {text}" if text else ""), None, error.filename or str(path), error.lineno)


def _users_line(error: BaseException, path: Path) -> tuple[str, int | None]:
    """The innermost line of the file, or of a module beside it, that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if Path(frame.filename).parent == path.parent:
            return frame.filename, frame.lineno
    return str(path), None


def _import_hint(error: ImportError, path: Path) -> str | None:
    top = (error.name or "").partition(".")[0]
    imported = sys.modules.get(top, ModuleType(top))
    if not top or not _beside(path.parent, top) or _folder_of(imported) == str(path.parent):
        return _spelling_hint(error)
    return f"the {top} beside the file is not the one imported: rename it, the installed one comes first"


def _spelling_hint(error: ImportError) -> str | None:
    """A name in the module that is spelled like the one that was imported."""
    if isinstance(error, ModuleNotFoundError):
        name, _, wanted = (error.name or "").rpartition(".")
    else:
        name, wanted = error.name or "", "".join(re.findall(r"^cannot import name '(\w+)'", str(error)))
    module = sys.modules.get(name)
    if module is None:
        return None
    public = [each for each in dir(module) if not each.startswith("_")]
    return did_you_mean(wanted, [*public, *_modules_in(getattr(module, "__path__", []))])


def _name_hint(error: Exception) -> str | None:
    """What a name or attribute that does not exist is spelled like. Python looks for that only when it prints."""
    if not isinstance(error, NameError | AttributeError) or not error.name:
        return None
    known: list[str] = []
    # `dir` of an object may be code of the user.
    with suppress(Exception):
        known = _names_in_scope(error) if isinstance(error, NameError) else dir(error.obj)
    return did_you_mean(error.name, [each for each in known if not each.startswith("_")])


def _names_in_scope(error: NameError) -> list[str]:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return [] if trace is None else [*trace.tb_frame.f_locals, *trace.tb_frame.f_globals, *dir(builtins)]


def _modules_in(folders: Iterable[str]) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(list(folders))]


def _no_pipeline(file: Path, module: ModuleType) -> Problem:
    classes = [name for name, value in vars(module).items() if value is Pipeline]
    held = [
        name
        for name, value in vars(module).items()
        if isinstance(value, list | tuple) and any(isinstance(item, Pipeline) for item in value)
    ]
    if held:
        hint = f"{held[0]} holds some, but each needs a name of its own: `first = {held[0]}[0]`"
    elif classes:
        hint = 'write `pipeline = Pipeline("an-id", sources=[…], destinations=[…])` outside of any function'
    else:
        hint = "`from conduit_py import Pipeline` and give one a name; `conduit-py quickstart --write FILE` shows how"
    return Problem("", "there is no pipeline at the top level of this file", hint, str(file))
