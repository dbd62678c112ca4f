"""StepGraph: steps joined by durable queues, each step on its own, and which step feeds which."""

import logging
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import trio

from conduit_py.errors import PipelineBusy, PipelineInvalid, PipelineUnknown
from conduit_py.steps.attempt_log import AttemptLog
from conduit_py.steps.queue import Queue, Queues
from conduit_py.steps.step import Message, Step, StepKind, problems_of
from conduit_py.steps.worker import Worker

log = logging.getLogger("conduit_py.steps")


@asynccontextmanager
async def open_steps(
    id: str,
    steps: Sequence[Step],
    queues: Queues | Path | str | None = None,
    *,
    errors: str | None = None,
    system: Mapping[str, Any] | None = None,
) -> "AsyncIterator[StepGraph]":
    """A graph, not started, whose queues are open. It is stopped at the end, and queues given as a path are closed.

    `errors` is the error queue of every step that names none. `system` is what handlers find in
    `process.system`.
    """
    problems = problems_of(steps, errors)
    if problems:
        raise PipelineInvalid(id, problems)
    own = queues if isinstance(queues, Queues) else Queues(queues)
    try:
        async with trio.open_nursery() as nursery:
            graph = StepGraph(id, steps, own, nursery, errors=errors, system=system)
            await graph.open()
            try:
                yield graph
            finally:
                with trio.CancelScope(shield=True):
                    await graph.stop()
    finally:
        if own is not queues:
            with trio.CancelScope(shield=True):
                await own.close()


class StepGraph:
    """Starts and stops the steps. One that fails ends, and is in `failures`; the others go on.

    Each step is known by the graph and its own id, so graphs that share a queue each see all of its
    messages (isolation), and a graph that runs somewhere else too is fenced there.
    """

    def __init__(
        self,
        id: str,
        steps: Sequence[Step],
        queues: Queues,
        nursery: trio.Nursery,
        *,
        errors: str | None = None,
        system: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.steps = [step if step.errors else msgspec.structs.replace(step, errors=errors) for step in steps]
        self.failures: dict[str, BaseException] = {}
        self._queues = queues
        self._nursery = nursery
        self._system = system or {}
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self._failed = trio.Event()

    async def open(self) -> None:
        for step in self.steps:
            for queue in step.queues:
                await self._queues.open(queue)

    def queue(self, id: str) -> Queue:
        """A queue of the graph."""
        known = sorted({queue for step in self.steps for queue in step.queues})
        if id not in known:
            raise PipelineUnknown(f"graph {self.id!r} has no queue {id!r}", suggestion=f"queues are {', '.join(known)}")
        return self._queues[id]

    async def send(self, message: Message, source: str | None = None) -> int:
        """Append a message to a source, which need not be named if there is only one; gives its index."""
        sources = [step.id for step in self.steps if step.kind is StepKind.SOURCE]
        if source is None and len(sources) == 1:
            (source,) = sources
        if source not in sources:
            known = ", ".join(sources)
            raise PipelineUnknown(f"graph {self.id!r} has no source {source!r}", suggestion=f"sources are {known}")
        return await self._queues[source].append(message)

    async def start(self) -> None:
        """Start every step where its log says; waits until a stop that is under way has ended."""
        if not self._ended.is_set() and not self._stopping.is_set():
            raise PipelineBusy(f"graph {self.id!r} is running already")
        await self._ended.wait()
        self.failures, self._failed = {}, trio.Event()
        self._stopping, self._ended, self._scope = trio.Event(), trio.Event(), trio.CancelScope()
        self._nursery.start_soon(self._run, self._stopping, self._ended, self._scope, name=f"steps {self.id}")

    async def stop(self, *, force: bool = False) -> None:
        """Let every step finish what it has in hand, or with `force` drop it; returns when all have ended."""
        self._stopping.set()
        if force:
            self._scope.cancel()
        await self._ended.wait()

    async def failure(self) -> tuple[str, BaseException]:
        """The first step that failed since the start, and why, as soon as there is one."""
        await self._failed.wait()
        return next(iter(self.failures.items()))

    async def _run(self, stopping: trio.Event, ended: trio.Event, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for step in self.steps:
                        if step.kind is not StepKind.SOURCE:
                            nursery.start_soon(self._work, step, stopping, name=f"step {self.id}.{step.id}")
        finally:
            ended.set()

    async def _work(self, step: Step, stopping: trio.Event) -> None:
        uid = f"{self.id}.{step.id}"
        try:
            attempts = AttemptLog(await self._queues.journal(f"attempts/{uid}"))
            worker = Worker(uid, step, self._queues, attempts, stopping, self._system)
            try:
                await worker.run()
            finally:
                worker.close()
        except Exception as error:  # a border: each step is a failure domain of its own
            log.error("step %s has ended: %s: %s", uid, type(error).__qualname__, error)
            self.failures[step.id] = error
            self._failed.set()


def topology(steps: Iterable[Step]) -> "nx.DiGraph[str]":
    """The steps as a graph: an edge for every queue that one writes and another reads."""
    steps = list(steps)
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(step.id for step in steps)
    writers = [(step.id, _output_queues(step)) for step in steps]
    readers = [(step.id, {*step.bindings.values(), *step.tailers.values()}) for step in steps]
    digraph.add_edges_from(
        (writer, reader) for writer, written in writers for reader, read in readers if written & read
    )
    return digraph


def _output_queues(step: Step) -> set[str]:
    return {step.id} if step.kind is StepKind.SOURCE else {*step.outputs.values(), *step.appenders.values()}


def isomorphic(these: Iterable[Step], those: Iterable[Step]) -> bool:
    """Whether two graphs do the same steps in the same order, whatever their queues are called."""
    one, other = topology(these), topology(those)
    return set(one.nodes) == set(other.nodes) and set(one.edges) == set(other.edges)


def graph_of_shape(shape: Any) -> "nx.DiGraph[Hashable]":
    """A graph from its drawing: a list is a pipeline, a set is side by side, a map is edges, None is nothing."""
    digraph: nx.DiGraph[Hashable] = nx.DiGraph()
    _draw(digraph, shape)
    return digraph


def inward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """The nodes that nothing feeds."""
    return {node for node, degree in digraph.in_degree() if degree == 0}


def outward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """The nodes that feed nothing."""
    return {node for node, degree in digraph.out_degree() if degree == 0}


def _draw(digraph: "nx.DiGraph[Hashable]", shape: Any) -> "nx.DiGraph[Hashable]":
    """Add the shape; gives it by itself, so that a pipeline knows its ends."""
    part: nx.DiGraph[Hashable] = nx.DiGraph()
    if isinstance(shape, Mapping):
        for before, after in shape.items():
            _draw(part, [_hashable(before), after])
    elif isinstance(shape, set | frozenset):
        for each in shape:
            _draw(part, _hashable(each))
    elif isinstance(shape, Sequence) and not isinstance(shape, str):
        parts = [_draw(part, each) for each in shape if each is not None]
        for before, after in pairwise(parts):
            part.add_edges_from((left, right) for left in outward(before) for right in inward(after))
    elif shape is not None:
        part.add_node(shape)
    digraph.update(part.edges, part.nodes)
    return part


def _hashable(shape: Any) -> Any:
    """A pipeline within a set or before an arrow is written as a tuple, which may stand there."""
    return list(shape) if isinstance(shape, tuple) else shape
