"""What a work is: contenders that do the same, and how the input is made and the output compared."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

Count: TypeAlias = Callable[[], int]
"""Counts the records at the sink. It is called after the clock has stopped, for every contender."""
Contender: TypeAlias = Callable[[int, Path], Count]
"""Does the work with so many records, in a folder that has the input."""

LOOP = "loop"
"""The contender that all others are compared with."""
CONTROL = "loop again"
"""The same once more, the A/A control: what differs by less than its spread is not resolved."""


def prepare_nothing(records: int, folder: Path) -> None:
    """The input of works that generate it."""


def digest_lines(folder: Path) -> str:
    """A digest of the bytes that reached the sink; counting sinks have none."""
    if not (folder / "out.jsonl").exists():
        return ""
    with (folder / "out.jsonl").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Work:
    """Contenders that do the same. Input is made before the clock starts, output compared after it has stopped."""

    title: str
    contenders: Mapping[str, Contender]
    prepare: Callable[[int, Path], None] = prepare_nothing
    digest: Callable[[Path], str] = digest_lines
    """Must be equal for all contenders."""
    records: int = 500_000
    """How many, unless somebody asks for another number."""


def count_lines(path: Path) -> Count:
    def count() -> int:
        with path.open("rb") as lines:
            return sum(1 for _ in lines)

    return count


def where_installed(**contenders: tuple[str, Contender]) -> dict[str, Contender]:
    """Those whose package, named first, is installed; others are left out of the table."""
    return {name: contender for name, (package, contender) in contenders.items() if find_spec(package)}
