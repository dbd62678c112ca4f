"""Loaded: what came of reading files: pipelines, and everything that is wrong or odd about the rest."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from conduit_py.errors import Problem
from conduit_py.pipeline import Pipeline

Desired: TypeAlias = Literal["running", "stopped"]


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline with the place it was read from and what its file wants of it.

    `name` is what people call it, the id unless the file says otherwise.
    """

    pipeline: Pipeline
    file: Path
    line: int | None
    desired: Desired = "running"
    name: str = ""

    @property
    def id(self) -> str:
        return self.pipeline.id

    @property
    def place(self) -> str:
        """Where it is written down, as `file:line`."""
        return str(self.file) if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class LoadWarning:
    """Something in a file that keeps no pipeline from running, but is hardly what was meant."""

    path: str
    message: str
    suggestion: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        advice = f" ({self.suggestion})" if self.suggestion else ""
        return ": ".join(part for part in (place, self.path, self.message) if part) + advice


class Loaded(NamedTuple):
    """The pipelines that can be used, every mistake in those that cannot, and warnings."""

    pipelines: tuple[LoadedPipeline, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[LoadWarning, ...] = ()


def together(parts: Iterable[Loaded]) -> Loaded:
    """What several files gave, in their order."""
    every = list(parts)
    return Loaded(
        tuple(pipeline for part in every for pipeline in part.pipelines),
        tuple(problem for part in every for problem in part.problems),
        tuple(warning for part in every for warning in part.warnings),
    )
