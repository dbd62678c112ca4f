"""Definitions: the pipelines of a folder as they stand, read again where its files have changed."""

import hashlib
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import outcome

from conduit_py.config.imports import content_of, forget_modules, imported_by, modules_beside
from conduit_py.config.load import PATTERNS, list_files, load_one, refuse_duplicate_ids
from conduit_py.config.loaded import Loaded, together
from conduit_py.errors import Problem

LOAD_SECONDS = 60.0
"""How long the code of a file may take to define its pipelines."""


@dataclass(frozen=True)
class LoadedFiles:
    """What the files said when they were last read."""

    files: Mapping[Path, Loaded] = field(default_factory=dict)
    refusal: Problem | None = None
    """Why no file could be read, if so."""

    @property
    def whole(self) -> Loaded:
        """Everything that can be used, and all that is wrong with the rest."""
        refused = Loaded(problems=() if self.refusal is None else (self.refusal,))
        return refuse_duplicate_ids(together([refused, *self.files.values()]))

    def problem_of(self, id: str, file: Path) -> Problem | None:
        """Why a pipeline that used to be in a file is not among the usable ones; None if it was taken out of it."""
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
        # Editors empty a file before they write it, so that this need not be meant.
        hint = "remove the file to remove its pipelines"
        return None if loaded.pipelines else Problem("", "there is no pipeline in this file any more", hint, str(file))


class Definitions:
    """A folder of pipeline files, or a single one, over time.

    A file is read again when its content has changed, or that of a module beside it that it imports, so
    that what did not change stays the very same object. Packages installed elsewhere are imported once.
    """

    def __init__(self, path: Path, *, load_seconds: float = LOAD_SECONDS) -> None:
        self.path = path
        self._load_seconds = load_seconds
        self._folder = (path if path.is_dir() else path.parent).absolute()
        self._digests: dict[Path, bytes] = {}
        self._modules: _Modules = {}
        self._reading = LoadedFiles()
        self.seen: dict[Path, tuple[int, ...] | None] = {}
        """The stamp of what was last read."""
        self.loading: Path | None = None
        """The file that is being read: for as long as its code runs, and no other is read meanwhile."""
        self._lock = threading.Lock()

    def read(self, *, afresh: bool = False) -> LoadedFiles:
        """Read what has changed, or everything: what files refer to, such as the environment, may have too.

        One reading at a time: another thread waits until this one is done.
        """
        with self._lock:
            return self._read(afresh=afresh)

    def _read(self, *, afresh: bool) -> LoadedFiles:
        files, refusal = list_files(self.path)
        if refusal is not None:
            self._reading, self.seen = LoadedFiles({}, refusal), self.stamp()
            return self._reading
        # Looked at before they are read, so that no later change is missed.
        looks = {file: _look(file) for file in files}
        contents = {file: content_of(file) for file in files}
        before = self._modules
        self._modules = {
            file: modules_beside(self._folder, imported_by(content)) if file.suffix.lower() == ".py" else {}
            for file, content in contents.items()
        }
        self.seen = {**looks, **{file: _look(file) for file in self._module_files()}}
        stale = self._stale(contents, before, afresh=afresh)
        known = self._reading.files
        self._reading = LoadedFiles(
            {file: self._load(file) if file in stale or file not in known else known[file] for file in files}
        )
        return self._reading

    def _load(self, file: Path) -> Loaded:
        """Load a file. One whose code does not come to an end is left behind in its thread, for the others' sake."""
        self.loading = file
        try:
            loaded: queue.SimpleQueue[outcome.Outcome[Loaded]] = queue.SimpleQueue()
            work = partial(_hand_over, loaded, file)
            threading.Thread(target=work, name=f"conduit-load-{file.name}", daemon=True).start()
            return loaded.get(timeout=self._load_seconds).unwrap()
        except queue.Empty:
            return Loaded(problems=(_endless(file, self._load_seconds),))
        finally:
            self.loading = None

    def stamp(self) -> dict[Path, tuple[int, ...] | None]:
        """Something that changes whenever a file that counts does, at the price of a look at each."""
        files, _ = list_files(self.path)
        return {file: _look(file) for file in (*files, *self._module_files())}

    def folders(self) -> set[Path]:
        """The folders in which a change may count."""
        return {self._folder, *(file.parent for file in self._module_files())}

    def counts(self, path: str) -> bool:
        """Whether a change at this path may concern us: folders and links do, and what is written in our languages."""
        return Path(path).suffix.lower() in ("", *PATTERNS) and "__pycache__" not in path

    def _module_files(self) -> set[Path]:
        return {file for modules in self._modules.values() for files in modules.values() for file in files}

    def _stale(self, contents: Mapping[Path, bytes], before: "_Modules", *, afresh: bool) -> set[Path]:
        """The files that must be read again; modules that changed, and those that import them, are forgotten."""
        files = {**contents, **{file: content_of(file) for file in self._module_files()}}
        digests = {file: _digest(file, content) for file, content in files.items()}
        changed = {file for file, digest in digests.items() if self._digests.get(file) != digest}
        changed |= self._digests.keys() - digests.keys()
        self._digests = digests
        stale = set(contents) if afresh else set()
        forgotten: dict[str, list[Path]] = {}
        for file, modules in self._modules.items():
            touched = _touched(self._folder, {**before.get(file, {}), **modules}, changed)
            forgotten |= touched
            if file in changed or touched:
                stale.add(file)
        if forgotten:
            forget_modules(forgotten)
        return stale


_Modules: TypeAlias = dict[Path, dict[str, list[Path]]]
"""By pipeline file: the modules beside it that it depends on, with their files."""


def _touched(folder: Path, modules: Mapping[str, list[Path]], changed: set[Path]) -> dict[str, list[Path]]:
    """The modules with a changed file, and those that import such a module."""
    return {
        name: files
        for name, files in modules.items()
        if changed.intersection(chain(files, *modules_beside(folder, [name]).values()))
    }


def _digest(file: Path, content: bytes) -> bytes:
    """Of the content, and of who may change it: a file that anybody may write to is refused."""
    look = _look(file)
    return hashlib.blake2b(content, key=str(look and look[-1]).encode()).digest()


def _look(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _hand_over(loaded: "queue.SimpleQueue[outcome.Outcome[Loaded]]", file: Path) -> None:
    loaded.put(outcome.capture(load_one, file))


def _endless(file: Path, seconds: float) -> Problem:
    what = f"did not define its pipelines within {seconds:g} s, and its code still runs"
    return Problem("", what, "do what takes time in the open() of a connector or processor", str(file))
