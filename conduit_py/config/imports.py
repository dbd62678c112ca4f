"""Imports: which modules beside a pipeline file it depends on, and how to have them read again."""

import ast
import functools
import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path


def modules_beside(folder: Path, names: Iterable[str]) -> dict[str, list[Path]]:
    """The modules and packages in the folder that are reached by importing these names, with all their files.

    Modules that these import in turn are among them. What is imported by a name made up while the
    program runs cannot be seen.
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
    """The top-level names of all modules that a Python file imports, in functions too; none if it has no syntax."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(_imported(tree))


def forget_modules(modules: dict[str, list[Path]]) -> None:
    """Have the next import of these names read their files again, also where an edit came within one second."""
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in modules:
            del sys.modules[loaded]
    for file in (file for files in modules.values() for file in files):
        # What Python keeps beside it goes by whole seconds.
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(str(file))).unlink()
    importlib.invalidate_caches()


def _imported(tree: ast.AST) -> Iterator[str]:
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
    """The bytes of a file; none if it is gone or cannot be read, or would have its reader wait, as a pipe does."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:
        return b""
