"""The modules beside a pipeline file that it depends on, and how to have them imported again."""

import ast
import functools
import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path


def modules_beside(folder: Path, names: Iterable[str]) -> dict[str, list[Path]]:
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
            pending += [each for file in files for each in imported_by(content_of(file))]
    return found


@functools.lru_cache(maxsize=1024)
def imported_by(content: bytes) -> frozenset[str]:
    """The top-level names of all modules that a Python file imports, in functions too; none for a syntax error."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(_module_names(tree))


def forget_modules(modules: dict[str, list[Path]]) -> None:
    """Make the next import of these names read their files again."""
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in modules:
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


def content_of(file: Path) -> bytes:
    """The bytes of a file; none if it is gone, cannot be read, or is a pipe, which could block for ever."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:
        return b""
