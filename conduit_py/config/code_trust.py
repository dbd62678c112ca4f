"""What may be executed: pipeline files, and modules beside them, that nobody but trusted users can change."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Exposure(NamedTuple):
    """A path through which anybody could change code that is to be executed."""

    path: Path
    what: str

    @property
    def message(self) -> str:
        return f"{self.what} can be written to by anybody, and pipelines are code"

    @property
    def suggestion(self) -> str:
        return f"chmod o-w {self.path}"


def find_exposure(file: Path) -> Exposure | None:
    """Return through what anybody could change a file: itself, or a folder on the way to it or to what it links to.

    Write access to a folder is enough to replace a file or a folder in it, unless the folder is sticky.
    """
    if file.stat().st_mode & stat.S_IWOTH:
        return Exposure(file, "the file")
    for link in _links(file.absolute()):
        for folder in dict.fromkeys([*link.parents, *link.resolve().parents]):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                return Exposure(folder, "its folder" if folder == file.absolute().parent else f"the folder {folder}")
    return None


def _links(path: Path) -> Iterator[Path]:
    """Return a path, and what it links to, link by link."""
    yield path
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


class ModuleExposed(ImportError):
    """A module beside a pipeline file that anybody could have changed. It was not executed."""

    def __init__(self, exposure: Exposure, origin: str) -> None:
        super().__init__(f"{origin} is not imported: {exposure.message}")
        self.suggestion = exposure.suggestion


class ModuleGuard(MetaPathFinder):
    """Refuses to import an exposed module from a folder of pipelines, or from a package in it. Finds nothing itself."""

    def __init__(self) -> None:
        self._folders: set[Path] = set()

    def protect(self, folder: Path) -> None:
        self._folders.add(folder)
        if self not in sys.meta_path:
            # Just before the finder of files: modules of the interpreter itself come first and are not beside anything.
            at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
            sys.meta_path.insert(at, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.has_location and spec.origin is not None:
            origin = Path(spec.origin)
            if not self._folders.isdisjoint(origin.parents):
                self._check(origin)
        return None

    def _check(self, origin: Path) -> None:
        exposure = find_exposure(origin) or _planted(origin)
        cached = Path(cache_from_source(str(origin))) if origin.suffix == ".py" else origin
        if exposure is None and cached.exists():
            exposure = find_exposure(cached)
        if exposure is not None:
            raise ModuleExposed(exposure, str(origin))


def _planted(file: Path) -> Exposure | None:
    """In a sticky folder such as /tmp nobody can change a file, but anybody can add one under the name of a module."""
    folder = file.parent
    if folder.stat().st_mode & stat.S_IWOTH and file.stat().st_uid not in (0, os.geteuid()):
        return Exposure(folder, f"the folder {folder}")
    return None
