"""Run: one run of a pipeline, from opening its connectors to tearing them down."""

import gc
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum
from functools import partial

import msgspec
import trio

from conduit_py import defaults
from conduit_py.dead_letter import record_place
from conduit_py.errors import ConduitError, ContractBroken, FatalError, NodeFailed, RunError, StopTimedOut
from conduit_py.exhaustion import unless_exhausted
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap_point import Taps
from conduit_py.pipeline import Processor
from conduit_py.sdk.endpoint import EndpointSource
from conduit_py.sdk.plugin import Options
from conduit_py.store.store import Store
from conduit_py.stream.commit import CommitStrategy, Task
from conduit_py.stream.connector_changes import notify_of_change, notify_of_removal
from conduit_py.stream.hot_swap import HotSwap
from conduit_py.stream.meter import Meter
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, locate_record
from conduit_py.stream.source_calls import SnapshotRequests
from conduit_py.stream.wiring import Wiring
from conduit_py.user_errors import as_error

log = logging.getLogger("conduit_py")

TEARDOWN_SECONDS = 10.0
FORCED_TEARDOWN_SECONDS = 2.0


class How(Enum):
    """How a run ended."""

    COMPLETED = "completed"
    """Every source ended by itself and everything read is settled."""
    STOPPED = "stopped"
    """A graceful stop ended it, and every record that was read is settled."""
    FORCED = "forced"
    """A forceful stop ended it; the records in flight will be read again."""
    FAILED = "failed"
    """`error` ended it; the records in flight will be read again."""


class Ending(msgspec.Struct, frozen=True):
    """How a run ended, and its first error if there was one."""

    how: How
    error: RunError | None = None


class Run:
    """Runs a graph once. All tasks run in one nursery; the first failure cancels it and is kept.

    `stop` is graceful and stops only the readers (invariant 8); `force` cancels every node at once
    (invariant 9). Both may be called at any time, also before `execute`, and repeatedly.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        commit: CommitStrategy,
        *,
        rng: random.Random | None = None,
        taps: Taps | None = None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._commit = commit
        self._wiring = Wiring(graph, store, commit, rng or random.Random(), taps or Taps())
        self._hot_swap = HotSwap(self._wiring.processors, self._wiring.ledgers)
        self._scope = trio.CancelScope()
        self._closing = trio.CancelScope(shield=True)
        self._stop_requested = False
        self._forced = False
        self._error: RunError | None = None
        self._closers: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self.endpoints: Mapping[str, EndpointSource[Options]] = {}

    @property
    def meters(self) -> list[Meter]:
        """The meters of every node in topological order, dead letters last; `refresh_gauges` updates the gauges."""
        return list(self._wiring.meters.values())

    @property
    def snapshot_requests(self) -> Mapping[str, SnapshotRequests]:
        """The requests to the sources that take any, by node."""
        return self._wiring.snapshot_requests

    def refresh_gauges(self) -> None:
        """Update the gauges of the meters."""
        self._wiring.refresh_gauges()

    def stop(self) -> None:
        if self._stop_requested:
            return
        self._stop_requested = True
        self._scope.deadline = trio.current_time() + self._graph.pipeline.settings.stop_seconds
        # Invariant 8: only the sources stop; every other node ends when its input does.
        for reader in self._wiring.readers.values():
            reader.stop()
        if self._wiring.replay is not None:
            self._wiring.replay.stop()

    def force(self) -> None:
        self._forced = True
        # Invariant 9: every node at once. What is in flight casts no vote and is read again.
        self._scope.cancel()
        self._closing.deadline = min(self._closing.deadline, trio.current_time() + FORCED_TEARDOWN_SECONDS)

    async def execute(self) -> Ending:
        """Run to the end. The ending has the first failure; only cancellation from outside is raised."""
        self._hot_swap.begin()
        with _SELDOM_COLLECTED:
            try:
                with self._scope:
                    if await self._open():
                        await self._work()
            finally:
                # Before anything is closed: a waiting `swap` must not open processors in a run that ends.
                self._hot_swap.end()
                self.endpoints = {}
                await self._close()
        await self._locate_refusal()
        return self._ending()

    async def swap(self, graph: Graph, nodes: Collection[str]) -> bool:
        """Replace the processors at these nodes by those of another graph of the same shape.

        Every record passes only old processors or only new ones (see HotSwap). Returns False if the run
        ended before. If a processor cannot be opened, its error is raised and nothing has changed.
        """
        declared = {node: graph.nodes[node].declared for node in nodes}
        return await self._hot_swap.swap({node: each for node, each in declared.items() if isinstance(each, Processor)})

    async def join_writes(self) -> None:
        """Wait until no write of this run is running in a thread. Call this after `execute`.

        The next run must not start before: a late write could overwrite newer records with older ones.
        """
        for node, calls in [*self._wiring.destinations.items(), *self._wiring.outbox.items()]:
            if calls.busy:
                log.warning("%s: a call of the last run is still running; the next run waits for it", node)
            # Invariant 1: a late write would put older records over those of the next run.
            await calls.join()
        await self._wiring.dead_letters.join()

    async def _open(self) -> bool:
        """Open destinations first and sources last, so that no record is read before it can be delivered."""
        try:
            # I7: before anything is read or written, so that an older run of the pipeline can commit nothing more.
            await self._commit.claim()
            await notify_of_removal(self._store, self._graph.pipeline.id, self._graph.nodes)
            await self._open_destinations()
            # I8: before the sources read. Intents of the last commit are carried out before any new commit.
            await self._commit.recover()
            for node, processor in self._wiring.processors.items():
                self._closers.append((node, processor.close))
                await processor.open()
            await self._open_sources()
        except ConduitError as error:
            self._fail(_in_node(None, error))
        return self._error is None

    async def _open_destinations(self) -> None:
        wiring = self._wiring
        for node, calls in wiring.destinations.items():
            await notify_of_change(self._store, self._graph.pipeline.id, node, "destination", calls)
            await self._open_connector(node, calls)
        for target, calls in wiring.outbox.items():
            await self._open_connector(f"outbox:{target}", calls)
        self._closers += [(DEAD_LETTERS, wiring.dead_letters.close)] if wiring.dead_letters.closes else []
        await wiring.dead_letters.open()

    async def _open_connector(self, node: str, calls: PluginCaller) -> None:
        self._closers.append((node, partial(calls, "teardown")))
        with PluginErrors(node, "open"):
            await calls("open")

    async def _open_sources(self) -> None:
        wiring, store, pipeline = self._wiring, self._store, self._graph.pipeline.id
        for node, calls in wiring.sources.items():
            await notify_of_change(store, pipeline, node, "source", calls)
            position = (await store.positions(pipeline)).get(node)
            await wiring.settlers[node].open(position)
            # Before `open`: a connector whose `open` failed may hold resources that `teardown` releases.
            self._closers.append((node, wiring.readers[node].close))
            with PluginErrors(node, "open"):
                await calls("open", position)
            if position is None:
                await self._save_start(node, calls)

    async def _save_start(self, node: str, calls: PluginCaller) -> None:
        """Make the beginning of a source durable before its first read.

        Before the first commit the beginning may move: a log is rotated, a topic grows. Without this position
        a restart would begin somewhere else, and the records between would be lost without a trace.
        """
        with PluginErrors(node, "start_position"):
            start = await calls("start_position")
        if start is not None and not isinstance(start, bytes):
            raise ContractBroken(node, f"start_position() must return bytes or None, not {type(start).__name__}")
        if start is not None:
            await self._store.start_position(self._graph.pipeline.id, node, start)

    async def _work(self) -> None:
        self.endpoints = self._wiring.endpoints
        async with trio.open_nursery() as background:
            for watch in self._wiring.lag_watches:
                background.start_soon(watch.run)
            async with self._hot_swap.allow(), trio.open_nursery() as nursery:
                for task in self._wiring.tasks:
                    (background if task.background else nursery).start_soon(self._run_task, task)
            # Background tasks never end by themselves.
            background.cancel_scope.cancel()

    async def _run_task(self, task: Task) -> None:
        try:
            await task.run()
        # A group: a task may have a nursery of its own.
        except* Exception as group:
            self._fail(_in_node(task.node, _first(group)))
        # The last line behind the plugin boundary: user code is also in `__copy__` or `__eq__` of a user's class.
        except* (SystemExit, KeyboardInterrupt) as exits:
            self._fail(_in_node(task.node, as_error(_first(exits))))

    def _fail(self, error: RunError) -> None:
        """Keep the first error and cancel the run; later errors are only logged."""
        # Here, where every error of a run passes: a plugin, the store and dead letters each met it in their own words.
        error = unless_exhausted(error)
        # Invariant 9: the first error is kept; those that it causes do not mask it.
        if self._scope.cancel_called or self._error is not None:
            log.debug("%s: an error after the first one", self._graph.pipeline.id, exc_info=error)
            return
        log.debug("%s: the run fails", self._graph.pipeline.id, exc_info=error)
        self._commit.explain(error)
        self._error = error
        self._scope.cancel()

    async def _close(self) -> None:
        """Tear down everything that was opened, also after an error; no connector can delay the others."""
        cut_short = self._forced or self._error is not None or self._scope.cancelled_caught
        seconds = FORCED_TEARDOWN_SECONDS if cut_short else TEARDOWN_SECONDS
        # A scope of its own: the run may be cancelled already, and its connectors must still be released.
        self._closing.deadline = trio.current_time() + seconds
        with self._closing:
            async with trio.open_nursery() as nursery:
                for node, close in self._closers:
                    nursery.start_soon(self._close_node, node, close)
        if self._closing.cancelled_caught:
            log.warning("%s: some connectors were not torn down in time and were abandoned", self._graph.pipeline.id)
        for calls in self._wiring.callers:
            calls.close()

    async def _close_node(self, node: str, close: Callable[[], Awaitable[None]]) -> None:
        try:
            with PluginErrors(node, "teardown"):
                await close()
        except RunError as error:
            self._fail(error)

    async def _locate_refusal(self) -> None:
        """Have the source of the record that ended the run say where it is, such as in which line of a file."""
        error = self._error
        if error is None or error.record is None or error.suggestion is None:
            return
        source, position = error.record
        # A dead letter that was sent again has no source in the pipeline.
        sources = {each.id: each.connector for each in self._graph.pipeline.sources}
        connector = sources.get(source)
        if connector is not None and (found := await locate_record(connector.declared, position)) is not None:
            error.suggestion = error.suggestion.replace(record_place(source, position), found)

    def _ending(self) -> Ending:
        if self._error is not None:
            return Ending(How.FAILED, self._error)
        if self._scope.cancelled_caught:
            return Ending(How.FORCED, None if self._forced else self._timed_out())
        if all(reader.completed for reader in self._wiring.readers.values()):
            return Ending(How.COMPLETED)
        return Ending(How.STOPPED)

    def _timed_out(self) -> StopTimedOut:
        seconds = self._graph.pipeline.settings.stop_seconds
        unsettled = sum(ledger.in_flight for ledger in self._wiring.ledgers.values())
        return StopTimedOut(
            f"the graceful stop did not end within {seconds:g} s; {unsettled} records in flight will be read again",
            suggestion="find out what blocked, or allow more time with stop_seconds",
        )


class _SeldomCollected:
    """Makes the garbage collector look at young objects less often while any run is executed.

    Records are no cycles: they are freed without it. At the default it looks at each batch several times.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0
        self._before = (0, 0, 0)

    def __enter__(self) -> None:
        with self._lock:
            self._runs += 1
            if self._runs == 1:
                self._before = gc.get_threshold()
                # 0 is off. More is a choice of the user.
                if 0 < self._before[0] < defaults.YOUNG_OBJECTS_MAX:
                    gc.set_threshold(defaults.YOUNG_OBJECTS_MAX, *self._before[1:])

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                gc.set_threshold(*self._before)


_SELDOM_COLLECTED = _SeldomCollected()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_node(node: str | None, error: BaseException) -> RunError:
    """Return the error as a RunError with its node."""
    if isinstance(error, RunError):
        error.node = error.node or node
        return error
    failed: RunError
    if isinstance(error, ConduitError):
        failed = FatalError(error.message, suggestion=error.suggestion)
    else:
        failed = NodeFailed(node or "the run", "running", error)
    failed.node = node
    failed.__cause__ = error
    return failed
