"""ProcessPool: where each pipeline of a server runs, and the processes that several of them share."""

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from conduit_py.backoff import Failures, Recovery
from conduit_py.child.link import RunReport
from conduit_py.child.process import ChildProcess, ChildRun, start_child
from conduit_py.child.supervisor import ChildSupervisor, pickle_or_refuse
from conduit_py.errors import FatalError
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.pipeline_log import PipelineLog
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.owned_process import SEE_LOG, ProcessLost
from conduit_py.pipeline import Pipeline
from conduit_py.store.store import Store

log = logging.getLogger("conduit_py")

RESTARTS = Recovery(delay_seconds=1.0, delay_max_seconds=60.0)
"""How long the pipelines of a shared process that was lost wait for the next one."""


class ProcessPool:
    """The engine of a server: pipelines on Spark have a process each, and `count` processes share the others.

    A pipeline goes where the fewest are, and stays there until the server ends. So the same files, read in the same
    order, have the same places after a restart. What cannot run in another process runs in the server's own, and so
    does everything if `count` is 0.
    """

    def __init__(self, count: int, nursery: trio.Nursery, *, restarts: Recovery = RESTARTS) -> None:
        self.processes = [SharedProcess(number, nursery, restarts) for number in range(1, count + 1)]
        self._places: dict[str, SharedProcess] = {}

    def supervise(self, graph: Graph, store: Store, *, recovery: Recovery, taps: Taps, log: PipelineLog) -> Supervisor:
        """The supervisor of a pipeline, for a fleet."""
        if graph.pipeline.spark is not None:
            return ChildSupervisor(graph, store, recovery=recovery, taps=taps, log=log)
        pickled = self._pickle(graph.pipeline, log) if self.processes else None
        if pickled is None:
            return Supervisor(graph, store, recovery=recovery, taps=taps, log=log)
        place = self.place(graph.pipeline.id)
        log.log_place(f"process {place.number} of {len(self.processes)}")
        return ChildSupervisor(graph, store, recovery=recovery, taps=taps, log=log, place=place, pickled=pickled)

    def place(self, pipeline: str) -> "SharedProcess":
        """The process of a pipeline."""
        if pipeline not in self._places:
            taken = Counter(each.number for each in self._places.values())
            self._places[pipeline] = min(self.processes, key=lambda each: (taken[each.number], each.number))
        return self._places[pipeline]

    def _pickle(self, pipeline: Pipeline, log: PipelineLog) -> bytes | None:
        """The pipeline for another process; None, with the reason in the log, if it must run in this one."""
        try:
            bound = [end.id for end in pipeline.ends if end.connector.declared.in_process]
            if not bound:
                return pickle_or_refuse(pipeline)
            why = f"{', '.join(bound)} works with what is in it"
        except FatalError as error:
            why = error.message
        log.log_place(f"the server's own process, because {why}", unusual=True)
        return None


class SharedProcess:
    """A process for a share of the pipelines. It starts with the first of them, and again after it was lost."""

    shared = True

    def __init__(self, number: int, nursery: trio.Nursery, restarts: Recovery) -> None:
        self.number: int | None = number
        self._nursery = nursery
        self._starting = trio.Lock()
        self._child: ChildProcess | None = None
        self._failures = Failures(restarts)
        self._rng = random.Random()
        self._delay = 0.0

    @asynccontextmanager
    async def enter(self, store: Store, on_report: Callable[[RunReport], None]) -> AsyncIterator[ChildRun]:
        # One task starts it: two would start two processes, and one would be nobody's.
        async with self._starting:
            child = self._child or await self._nursery.start(self._live, store)
        run = child.add_run(on_report)
        try:
            yield run
        finally:
            # Invariant C2: a run that nobody watches is not left behind. Only a whole process can be ended for sure.
            if not run.over.is_set():
                child.kill()
                with trio.CancelScope(shield=True):
                    await run.over.wait()

    async def _live(
        self, store: Store, *, task_status: trio.TaskStatus[ChildProcess] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run one process until it ends; what runs in it then is over, and not before it was reaped."""
        began, name = trio.current_time(), f"process {self.number}"
        child: ChildProcess | None = None
        try:
            async with start_child(name, alone=False) as child:
                self._child = child
                log.info("%s is started, with pid %d", name, child.pid)
                task_status.started(child)
                try:
                    await child.serve(store)
                finally:
                    if not child.link.ended:
                        child.kill()
        except Exception:  # a boundary: what a child sends may end the child, not the server
            if child is None:
                raise
            log.exception("%s sent what cannot be understood, and was ended", name)
        finally:
            self._child = None
            if child is not None:
                self._failures.add(None, trio.current_time(), began)
                self._delay = self._failures.delay(None, self._rng)
                if child.runs:
                    what = "%s, with pid %d, %s; its %d pipelines go on in another one in %.3g s"
                    log.error(what, name, child.pid, child.describe_end(), child.runs, self._delay)
                child.end_runs()

    def loss_error(self, pipeline: str, child: ChildProcess) -> ProcessLost:
        # The same delay for all: the next process starts once, and a process that ends again and again ever later.
        what = f"process {self.number} of the server, in which {pipeline} ran with others, {child.describe_end()}"
        return ProcessLost(what, suggestion=SEE_LOG, retry_after=self._delay)
