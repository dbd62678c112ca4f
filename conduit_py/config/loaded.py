"""Loaded: the result of loading files: pipelines, problems and warnings."""

import copy
import dataclasses
import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from conduit_py.errors import Problem
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.pipeline import Pipeline
from conduit_py.pipeline_settings import Engine
from conduit_py.sdk.secrets import SecretReading

Desired: TypeAlias = Literal["running", "stopped"]


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, where it is defined, and the status that its file wants.

    `name` is for people; it is the id unless the file gives another.
    """

    pipeline: Pipeline
    file: Path
    line: int | None
    desired: Desired = "running"
    name: str = ""
    edited: bool = True
    """False if it was only read again: what differs then comes from elsewhere, such as a secret that was rotated."""
    secrets: Collection[SecretReading] = field(default=(), compare=False)
    """The secrets that its file has read from files and from other systems."""

    @property
    def id(self) -> str:
        return self.pipeline.id

    # Cached, so that the checker, the supervisor and a reload that finds no change share one graph.
    @functools.cached_property
    def graph(self) -> Graph:
        """Its checked graph, compiled once. Raises PipelineInvalid with all problems of the definition."""
        return compile_pipeline(self.pipeline)

    def on_engine(self, engine: Engine) -> "LoadedPipeline":
        """The same pipeline on another engine, which may refuse what this one runs."""
        if engine == self.pipeline.settings.engine:
            return self
        # A copy: this one keeps the graph that was compiled for its own engine.
        pipeline = copy.copy(self.pipeline)
        pipeline.settings = pipeline.settings.model_copy(update={"engine": engine})
        return dataclasses.replace(self, pipeline=pipeline)

    @property
    def place(self) -> str:
        """Where it is defined, as `file:line`."""
        return str(self.file) if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class LoadWarning:
    """Something in a file that stops no pipeline from running but is probably a mistake."""

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
    """The usable pipelines, every problem with the others, and warnings."""

    pipelines: tuple[LoadedPipeline, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[LoadWarning, ...] = ()


def combine(parts: Iterable[Loaded]) -> Loaded:
    """The results of several files as one, in their order."""
    every = list(parts)
    return Loaded(
        tuple(pipeline for part in every for pipeline in part.pipelines),
        tuple(problem for part in every for problem in part.problems),
        tuple(warning for part in every for warning in part.warnings),
    )
