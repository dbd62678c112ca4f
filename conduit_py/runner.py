"""Runs a pipeline from Python: `run` in a script, `run_async` and `running` in a program of trio or asyncio.

What keeps a pipeline from starting is raised. How it ended, errors included, is in the RunOutcome.
"""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import trio

from conduit_py.errors import EnvironmentUnfit
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Pipeline
from conduit_py.run_outcome import RunCounts, RunOutcome, count_progress, list_kept_letters, summarize_dead_letters
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store, open_store

log = logging.getLogger("conduit_py")

StateLocation: TypeAlias = str | Path | None
"""A directory, or the address of a PostgreSQL database. None keeps the state in memory until the run has ended."""


def run(pipeline: Pipeline, *, state: StateLocation = None) -> RunOutcome:
    """Run a pipeline until it completes, fails for good or is interrupted, and return how it ended.

    With `state` the next run continues where this one ended. Ctrl-C or SIGTERM stops the pipeline gracefully, a
    second one at once; then the signal has its usual effect, so that Ctrl-C raises KeyboardInterrupt. Raises
    PipelineInvalid if the definition has problems, and RuntimeError in a thread that runs an event loop.
    """
    _require_no_event_loop()
    handle = RunningPipeline(pipeline)
    with _stop_on_signals(handle):
        return trio.run(_execute, handle, state)


async def run_async(pipeline: Pipeline, *, state: StateLocation = None) -> RunOutcome:
    """`run` in a task of trio or asyncio. If the task is cancelled, the pipeline is stopped gracefully first."""
    async with running(pipeline, state=state) as handle:
        return await handle.wait()


def running(pipeline: Pipeline, *, state: StateLocation = None) -> "AbstractAsyncContextManager[RunningPipeline]":
    """Run a pipeline beside the block of an `async with`, and stop it gracefully at the end of the block.

    Works under trio, and under asyncio, where the pipeline has a thread with an event loop of its own. A
    pipeline that ends earlier does not end the block: `wait` returns how it ended.
    """
    return _beside_trio(pipeline, state) if trio.lowlevel.in_trio_task() else _beside_asyncio(pipeline, state)


def supervise(graph: Graph, store: Store) -> Supervisor:
    """The supervisor for the engine that the pipeline names, in this process."""
    if graph.pipeline.spark is None:
        return Supervisor(graph, store)
    # Spark takes seconds to import, which other pipelines must not pay.
    from conduit_py.spark.engine.supervisor import spark_supervisor

    return spark_supervisor(graph, store)


def require_engine(pipeline: Pipeline) -> None:
    """Return if this machine has what the engine of the pipeline needs, else raise EnvironmentUnfit."""
    if pipeline.spark is None:
        return
    try:
        from conduit_py.spark.engine.supervisor import require_spark
    except ImportError as error:
        raise EnvironmentUnfit(str(error), suggestion="pip install 'conduit-dataflow[spark]'") from error
    require_spark()


def engine_warnings(pipeline: Pipeline) -> list[str]:
    """Return what the settings of Spark in this pipeline open to others, a sentence each. After `require_engine`."""
    # Without the module there is no connector that uses Spark.
    if pipeline.spark is None and "conduit_py.spark.session.shared_session" not in sys.modules:
        return []
    from conduit_py.spark.engine.supervisor import options_of
    from conduit_py.spark.session.java import exposures

    options = options_of(pipeline)
    return exposures(options.master, options.conf)


class RunningPipeline:
    """A pipeline that was started. Everything but `wait` and `counts` may be used from any thread."""

    def __init__(self, pipeline: Pipeline, wait: Callable[[], Awaitable[object]] = trio.sleep_forever) -> None:
        self.pipeline = pipeline
        self.outcome: RunOutcome | None = None
        """How it ended; None while it runs."""
        self._supervisor: Supervisor | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopping = False
        self._forced = False
        self._wait = wait

    @property
    def status(self) -> Status:
        return Status.CREATED if self._supervisor is None else self._supervisor.state.status

    def stop(self, *, force: bool = False) -> None:
        """Ask for a graceful stop, or with `force` for one that drops what is in flight. Returns at once."""
        # Never back to graceful: a stop at the end of a block must not weaken the forced one of a second signal.
        self._stopping, self._forced = True, self._forced or force
        if self._token is not None:
            # The loop may end between the check and the call, in another thread.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop_supervisor)

    async def wait(self) -> RunOutcome:
        """Return how the pipeline ended, once it has. Cancelling `wait` does not stop the pipeline."""
        await self._wait()
        assert self.outcome is not None, "it ended by an error of ours, which the block raises"
        return self.outcome

    async def counts(self) -> RunCounts:
        """What the pipeline did so far."""
        assert self._supervisor is not None, "a handle is given out after the start"
        if self.outcome is not None:
            return self.outcome.counts
        if trio.lowlevel.in_trio_task():
            return count_progress(self._supervisor.progress())
        ask = partial(trio.from_thread.run_sync, self._supervisor.progress, trio_token=self._token)
        return count_progress(await asyncio.to_thread(ask))

    def attach(self, supervisor: Supervisor) -> None:
        """Take the supervisor whose run it handles, in its event loop and before anybody has the handle."""
        self._supervisor = supervisor
        self._token = trio.lowlevel.current_trio_token()
        # After the token is set: a `stop` in another thread that did not see it is seen here.
        if self._stopping:
            self._stop_supervisor()

    async def follow(self, store: Store) -> RunOutcome:
        """Run to the end, in the event loop of the pipeline."""
        assert self._supervisor is not None
        supervisor = self._supervisor
        state = await supervisor.run()
        kept = await list_kept_letters(store, self.pipeline.id)
        counts = count_progress(supervisor.progress())
        warning = summarize_dead_letters(supervisor.progress(), self.pipeline.dead_letters.policy)
        if warning is not None:
            log.warning("%s: %s", self.pipeline.id, warning)
        self.outcome = RunOutcome(self.pipeline.id, state.status, counts, kept, supervisor.error, warning)
        return self.outcome

    def _stop_supervisor(self) -> None:
        assert self._supervisor is not None
        if self._forced:
            self._supervisor.force()
        else:
            self._supervisor.stop()


async def _execute(
    handle: RunningPipeline, state: StateLocation, started: Callable[[], None] = lambda: None
) -> RunOutcome:
    graph = compile_pipeline(handle.pipeline)
    require_engine(handle.pipeline)
    async with _open_state(state) as store:
        handle.attach(supervise(graph, store))
        started()
        return await handle.follow(store)


@asynccontextmanager
async def _open_state(state: StateLocation) -> AsyncIterator[Store]:
    store = MemoryStore() if state is None else await open_store(state)
    try:
        yield store
    finally:
        # Shielded: a cancelled run must still close the store, or its lock stays for the next run.
        with trio.CancelScope(shield=True):
            await store.close()


@asynccontextmanager
async def _beside_trio(pipeline: Pipeline, state: StateLocation) -> AsyncIterator[RunningPipeline]:
    ended = trio.Event()
    handle = RunningPipeline(pipeline, ended.wait)
    raised: BaseException | None = None

    async def work(store: Store) -> None:
        try:
            # Shielded: a cancellation from outside must not reach the nodes, which are to stop gracefully.
            with trio.CancelScope(shield=True):
                await handle.follow(store)
        finally:
            ended.set()

    graph = compile_pipeline(pipeline)
    require_engine(pipeline)
    async with _open_state(state) as store:
        handle.attach(supervise(graph, store))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, store)
            try:
                yield handle
            except BaseException as error:  # raised again below: the nursery would wrap it in a group
                raised = error
            handle.stop()
            with trio.CancelScope(shield=True):
                await ended.wait()
    if raised is not None:
        raise raised


@asynccontextmanager
async def _beside_asyncio(pipeline: Pipeline, state: StateLocation) -> AsyncIterator[RunningPipeline]:
    loop = asyncio.get_running_loop()
    started: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[BaseException | None] = loop.create_future()
    handle = RunningPipeline(pipeline, lambda: asyncio.shield(ended))

    def tell(future: "asyncio.Future[Any]", result: BaseException | None = None) -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody waits for the pipeline any more.
            loop.call_soon_threadsafe(future.set_result, result)

    def work() -> None:
        try:
            trio.run(_execute, handle, state, partial(tell, started))
        except BaseException as error:  # the top of a thread: raised in the task that waits for it
            tell(ended, error)
        else:
            tell(ended)

    # A daemon: a program that leaves its loop without waiting must be able to end.
    threading.Thread(target=work, name=f"conduit_py {pipeline.id}", daemon=True).start()
    error: BaseException | None = None
    try:
        either: set[asyncio.Future[Any]] = {started, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            yield handle
    finally:
        error = await _join(handle, ended)
    if error is not None:
        raise error


async def _join(handle: RunningPipeline, ended: "asyncio.Future[BaseException | None]") -> BaseException | None:
    """Stop the pipeline and wait until its thread has ended. A second cancellation stops it by force."""
    handle.stop()
    try:
        # Shielded in both places: cancelling the future itself would lose the result of the thread.
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        handle.stop(force=True)
        await asyncio.shield(ended)
        raise


def _require_no_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if not trio.lowlevel.in_trio_run():
            return
    raise RuntimeError(
        "an event loop is running in this thread: write `await conduit_py.run_async(…)` instead of run(…)"
    )


@contextmanager
def _stop_on_signals(handle: RunningPipeline) -> Iterator[None]:
    """Stop the pipeline on a signal that would end the process, then let the signal have its usual effect."""
    # Python allows signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A handler that the program installed stays: the program decides then if it stops the pipeline.
    ours = [number for number, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

    def restore() -> None:
        for number in ours:
            signal.signal(number, usual[number])

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handle.stop(force=len(received) > 1)
        if len(received) > 1:
            # The third has its usual effect at once: a user's function that never returns must be interruptible.
            restore()

    for number in ours:
        signal.signal(number, receive)
    try:
        yield
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])
