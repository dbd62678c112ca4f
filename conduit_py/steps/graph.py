"""StepGraph: runs steps that are joined by durable queues; and the topology of such a graph."""

import logging
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import trio

from conduit_py.errors import PipelineBusy, PipelineInvalid, PipelineUnknown, describe
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
    """Open a graph and its queues, without starting it. At the end of the block the graph is stopped.

    Queues given as a path are closed too. `errors` is the error queue of every step without one. `system` is
    passed to handlers as `process.system`. Raises PipelineInvalid with every problem of the steps.
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
                # Shielded: the steps must end before their queues are closed, also in a cancelled block.
                with trio.CancelScope(shield=True):
                    await graph.stop()
    finally:
        if own is not queues:
            with trio.CancelScope(shield=True):
                await own.close()


class StepGraph:
    """Starts and stops the steps. A step that fails ends and is in `failures`; the others continue.

    A step is identified by the id of the graph and its own id. So graphs that share a queue each read all of its
    messages, and a second process with the same graph fences the first.
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
        """Return a queue of the graph. Raises PipelineUnknown if it has none with this id."""
        known = sorted({queue for step in self.steps for queue in step.queues})
        if id not in known:
            raise PipelineUnknown(f"graph {self.id!r} has no queue {id!r}", suggestion=f"queues are {', '.join(known)}")
        return self._queues[id]

    async def send(self, message: Message, source: str | None = None) -> int:
        """Append a message to a source and return its index. The only source need not be named."""
        sources = [step.id for step in self.steps if step.kind is StepKind.SOURCE]
        if source is None and len(sources) == 1:
            (source,) = sources
        if source not in sources:
            known = ", ".join(sources)
            raise PipelineUnknown(f"graph {self.id!r} has no source {source!r}", suggestion=f"sources are {known}")
        return await self._queues[source].append(message)

    async def start(self) -> None:
        """Start every step where its log ends. Waits for a running stop first."""
        if not self._ended.is_set() and not self._stopping.is_set():
            raise PipelineBusy(f"graph {self.id!r} is running already")
        await self._ended.wait()
        # New objects: an event that is set and a scope that is cancelled stay so, and would end this run at once.
        self.failures, self._failed = {}, trio.Event()
        self._stopping, self._ended, self._scope = trio.Event(), trio.Event(), trio.CancelScope()
        self._nursery.start_soon(self._run, self._stopping, self._ended, self._scope, name=f"steps {self.id}")

    async def stop(self, *, force: bool = False) -> None:
        """Stop every step after its current message, or with `force` at once; return when all have ended."""
        self._stopping.set()
        if force:
            self._scope.cancel()
        await self._ended.wait()

    async def failure(self) -> tuple[str, BaseException]:
        """Wait for the first step to fail since the start; return its id and the error."""
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
        except Exception as error:  # one failed step must not end the others
            log.error("step %s has ended: %s", uid, describe(error))
            self.failures[step.id] = error
            self._failed.set()


def topology(steps: Iterable[Step]) -> "nx.DiGraph[str]":
    """Return the steps as a graph, with an edge for every queue that one step writes and another reads."""
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
    """Return True if two graphs have the same steps and edges, whatever the names of their queues."""
    one, other = topology(these), topology(those)
    return set(one.nodes) == set(other.nodes) and set(one.edges) == set(other.edges)


def graph_of_shape(shape: Any) -> "nx.DiGraph[Hashable]":
    """Return a graph from its shape: a list is a chain, a set is parallel, a map is edges, None is empty."""
    digraph: nx.DiGraph[Hashable] = nx.DiGraph()
    _draw(digraph, shape)
    return digraph


def inward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """Return the nodes without input."""
    return {node for node, degree in digraph.in_degree() if degree == 0}


def outward(digraph: "nx.DiGraph[Hashable]") -> set[Hashable]:
    """Return the nodes without output."""
    return {node for node, degree in digraph.out_degree() if degree == 0}


def _draw(digraph: "nx.DiGraph[Hashable]", shape: Any) -> "nx.DiGraph[Hashable]":
    """Add a shape to the graph; return the graph of the shape alone, whose ends a chain connects."""
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
