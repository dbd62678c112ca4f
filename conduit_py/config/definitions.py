"""Definitions: the pipelines of a folder; files that have changed are loaded again."""

import ast
import dataclasses
import functools
import hashlib
import importlib
import queue
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import outcome

from conduit_py.config.load import PATTERNS, list_files, load_one, refuse_duplicate_ids, warn_if_empty
from conduit_py.config.loaded import Loaded, combine
from conduit_py.errors import Problem
from conduit_py.sdk.secrets import SecretReading

LOAD_SECONDS = 60.0
"""How long the code of a file may take to define its pipelines."""


@dataclass(frozen=True)
class LoadedFiles:
    """The content of all pipeline files when they were last read."""

    files: Mapping[Path, Loaded] = field(default_factory=dict)
    refusal: Problem | None = None
    """Why no file could be read, if so."""
    path: Path | None = None
    """The folder that was read."""

    @property
    def whole(self) -> Loaded:
        """All usable pipelines, and every problem with the rest."""
        refused = Loaded(problems=() if self.refusal is None else (self.refusal,))
        whole = refuse_duplicate_ids(combine([refused, *self.files.values()]))
        return whole if self.path is None else warn_if_empty(self.path, whole)

    def problem_of(self, id: str, file: Path) -> Problem | None:
        """Why a pipeline that used to be in a file is not usable now; None if it was removed from the file."""
        if self.refusal is not None:
            return self.refusal
        repeated = [problem for problem in self.whole.problems if problem.path == "id" and f"{id!r}" in problem.message]
        if any(each.id == id for loaded in self.files.values() for each in loaded.pipelines) and repeated:
            return repeated[0]
        loaded = self.files.get(file)
        if loaded is None:
            return None
        if loaded.problems:
            return loaded.problems[0]
        # Some editors empty a file before they write it, so an empty file does not remove its pipelines.
        hint = "remove the file to remove its pipelines"
        return None if loaded.pipelines else Problem("", "there is no pipeline in this file any more", hint, str(file))


class Definitions:
    """A folder of pipeline files, or a single file, over time.

    A file is loaded again when its content changes, or the content of a module beside it that it imports.
    Pipelines of other files stay the same objects. Packages installed elsewhere are imported once.
    """

    def __init__(self, path: Path, *, load_seconds: float = LOAD_SECONDS) -> None:
        self.path = path
        self._load_seconds = load_seconds
        # Absolute: code in a pipeline file may change the working directory.
        self._folder = (path if path.is_dir() else path.parent).absolute()
        self._digests: dict[Path, bytes] = {}
        self._modules: _Modules = {}
        self._reading = LoadedFiles()
        self.seen: dict[Path, tuple[int, ...] | None] = {}
        """The stamp of what was last read."""
        self.loading: Path | None = None
        """The file that is being loaded. No other file is loaded while its code runs."""
        self._lock = threading.Lock()

    def read(self, *, afresh: bool = False, again: Collection[Path] = ()) -> LoadedFiles:
        """Load the files that have changed, or all of them: the environment that they refer to may have changed too.

        Those of `again` are loaded although they have not changed. Only one thread reads at a time; others wait.
        """
        # Loading a file changes sys.path and sys.modules, so two threads must never do it at once.
        with self._lock:
            return self._read(afresh=afresh, again=again)

    def _read(self, *, afresh: bool, again: Collection[Path]) -> LoadedFiles:
        files, refusal = list_files(self.path)
        if refusal is not None:
            self._reading, self.seen = LoadedFiles({}, refusal), self.stamp()
            return self._reading
        # Stamped before they are read: a change that comes later must not be missed.
        looks = {file: _look(file) for file in files}
        contents = {file: _content_of(file) for file in files}
        before = self._modules
        self._modules = {
            file: _modules_beside(self._folder, _imported_names(content)) if file.suffix.lower() == ".py" else {}
            for file, content in contents.items()
        }
        self.seen = {**looks, **{file: _look(file) for file in self._module_files()}}
        edited = self._find_edits(contents, before)
        loaded = {file: self._read_one(file, file in edited, afresh=afresh or file in again) for file in files}
        self._reading = LoadedFiles(loaded, path=self.path)
        return self._reading

    def _read_one(self, file: Path, edited: bool, *, afresh: bool) -> Loaded:
        known = self._reading.files.get(file)
        if known is None or edited:
            return self._load(file)
        return _as_unedited(self._load(file)) if afresh else known

    def _load(self, file: Path) -> Loaded:
        """Load a file in a thread. A thread whose code does not end in time is abandoned, so that other files load."""
        self.loading = file
        try:
            loaded: queue.SimpleQueue[outcome.Outcome[Loaded]] = queue.SimpleQueue()
            work = functools.partial(_load_into, loaded, file)
            # A daemon thread: code that never ends must not keep the process from ending.
            threading.Thread(target=work, name=f"conduit-load-{file.name}", daemon=True).start()
            return loaded.get(timeout=self._load_seconds).unwrap()
        except queue.Empty:
            return Loaded(problems=(_timeout_problem(file, self._load_seconds),))
        finally:
            self.loading = None

    def rotated_secrets(self) -> dict[Path, list[SecretReading]]:
        """By pipeline file: the secrets that are no longer what they were when they were read."""
        readings = {one for loaded in self._reading.files.values() for each in loaded.pipelines for one in each.secrets}
        # Compared once, however many pipelines use it.
        rotated = {one for one in readings if one.rotated()}
        found: dict[Path, list[SecretReading]] = {}
        for file, loaded in self._reading.files.items():
            secrets = {one for each in loaded.pipelines for one in each.secrets if one in rotated}
            if secrets:
                found[file] = sorted(secrets, key=lambda one: one.where)
        return found

    def stamp(self) -> dict[Path, tuple[int, ...] | None]:
        """A value that changes whenever a relevant file does. Costs one `stat` per file."""
        files, _ = list_files(self.path)
        return {file: _look(file) for file in (*files, *self._module_files())}

    def folders(self) -> set[Path]:
        """The folders to watch for changes."""
        return {self._folder, *(file.parent for file in self._module_files())}

    def counts(self, path: str) -> bool:
        """Whether a change at this path may be relevant: folders, links, and files in one of our languages."""
        return Path(path).suffix.lower() in ("", *PATTERNS) and "__pycache__" not in path

    def _module_files(self) -> set[Path]:
        return {file for modules in self._modules.values() for files in modules.values() for file in files}

    def _find_edits(self, contents: Mapping[Path, bytes], before: "_Modules") -> set[Path]:
        """The files that changed or import a module that did. Such modules leave `sys.modules`."""
        files = {**contents, **{file: _content_of(file) for file in self._module_files()}}
        digests = {file: _digest(file, content) for file, content in files.items()}
        changed = {file for file, digest in digests.items() if self._digests.get(file) != digest}
        # A module that was removed has changed too: the files that import it must be loaded again, and fail.
        changed |= self._digests.keys() - digests.keys()
        self._digests = digests
        edited = set()
        forgotten: dict[str, list[Path]] = {}
        for file, modules in self._modules.items():
            # Also the modules it imported before: one that is gone no longer appears among the present ones.
            touched = _touched_modules(self._folder, {**before.get(file, {}), **modules}, changed)
            forgotten |= touched
            if file in changed or touched:
                edited.add(file)
        if forgotten:
            _forget_modules(forgotten)
        return edited


_Modules: TypeAlias = dict[Path, dict[str, list[Path]]]
"""By pipeline file: the modules beside it that it depends on, with their files."""


def _as_unedited(loaded: Loaded) -> Loaded:
    return loaded._replace(pipelines=tuple(dataclasses.replace(each, edited=False) for each in loaded.pipelines))


def _touched_modules(folder: Path, modules: Mapping[str, list[Path]], changed: set[Path]) -> dict[str, list[Path]]:
    """The modules with a changed file, and those that import such a module."""
    return {
        name: files
        for name, files in modules.items()
        if changed.intersection(chain(files, *_modules_beside(folder, [name]).values()))
    }


def _digest(file: Path, content: bytes) -> bytes:
    """Of the content and the mode: a file is refused or accepted by who may write to it."""
    look = _look(file)
    return hashlib.blake2b(content, key=str(look and look[-1]).encode()).digest()


def _look(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _load_into(loaded: "queue.SimpleQueue[outcome.Outcome[Loaded]]", file: Path) -> None:
    loaded.put(outcome.capture(load_one, file))


def _timeout_problem(file: Path, seconds: float) -> Problem:
    what = f"did not define its pipelines within {seconds:g} s, and its code still runs"
    return Problem("", what, "do what takes time in the open() of a connector or processor", str(file))


def _modules_beside(folder: Path, names: Iterable[str]) -> dict[str, list[Path]]:
    """The modules and packages in the folder that these names import, directly or not, with all their files.

    Imports by a name that is computed while the program runs are not found.
    """
    found: dict[str, list[Path]] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        files = [] if name in found else _files_of(folder, name)
        if files:
            found[name] = files
            pending += [each for file in files for each in _imported_names(_content_of(file))]
    return found


@functools.lru_cache(maxsize=1024)
def _imported_names(content: bytes) -> frozenset[str]:
    """The top-level names of all modules that a Python file imports, in functions too; none for a syntax error."""
    try:
        tree = ast.parse(content)
    # Loading the file reports the error, with its line; here it only means that nothing is known of its imports.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(_module_names(tree))


def _forget_modules(modules: dict[str, list[Path]]) -> None:
    """Make the next import of these names read their files again."""
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in modules:
            # Submodules too: a package that is imported again would otherwise keep its old ones.
            del sys.modules[loaded]
    for file in (file for files in modules.values() for file in files):
        # A .pyc is compared by whole seconds, so it would hide an edit made within one.
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(str(file))).unlink()
    importlib.invalidate_caches()


def _module_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files_of(folder: Path, name: str) -> list[Path]:
    module, package = folder / f"{name}.py", folder / name
    if package.is_dir():
        return sorted(package.rglob("*.py"))
    return [module] if module.is_file() else []


def _content_of(file: Path) -> bytes:
    """The bytes of a file; none if it is gone, cannot be read, or is a pipe, which could block for ever."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:
        return b""
