"""OwnedThread and GroupThread: the one bridge between tasks of trio and a thread that does blocking work for them.

AsyncioCall is the bridge to a thread in which asyncio runs. OwnClock tells whether a call needs a thread at all.
"""

import inspect
import math
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import outcome
import trio

from conduit_py.exhaustion import end_without_memory

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
R = TypeVar("R", bound="Request")


@dataclass(slots=True, eq=False)
class Request:
    """A request of a task to a thread. The thread sets `answer`; `task` is None after the task was cancelled."""

    task: trio.lowlevel.Task | None = field(default=None, init=False)
    token: trio.lowlevel.TrioToken = field(init=False)
    answer: outcome.Outcome[Any] = field(init=False)


class GroupThread(Generic[R]):
    """Carries out requests in one thread, in order; all waiting requests form one group.

    `carry_out` runs in the thread and sets the answer of each request in a group. It may skip a request whose
    task is None. A cancelled caller returns at once, but its request still reaches `carry_out`.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[list[R]], None],
        *,
        one_by_one: bool = False,
        delivering: Callable[[], None] | None = None,
        run_ended: Callable[[], None] | None = None,
    ) -> None:
        """Start the thread. `delivering` is called in the trio thread before the answers of a group are delivered.

        `run_ended` is called in the worker thread if trio's run ended before answers could be delivered.
        """
        self._carry_out = carry_out
        self._one_by_one = one_by_one
        self._delivering = delivering
        self._run_ended = run_ended
        self._requests: queue.SimpleQueue[R | None] = queue.SimpleQueue()
        # A daemon thread, so that a call that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"conduit-{name}", daemon=True)
        self._thread.start()

    async def ask(self, request: R) -> Any:
        """Queue a request at once, then wait for its answer."""
        request.task = trio.lowlevel.current_task()
        request.token = trio.lowlevel.current_trio_token()
        self._requests.put(request)

        # Cancelled at once, though the thread cannot be interrupted: a stuck call must not hold up a forceful stop.
        def leave(_: object) -> trio.lowlevel.Abort:
            request.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(leave)

    def close(self) -> None:
        """End the thread after the requests already made."""
        self._requests.put(None)

    async def join(self) -> None:
        """Wait until the last request is done and the closed thread has ended."""
        if self._thread.is_alive():
            # A separate limiter: waits for stuck calls must not use up trio's shared threads.
            await trio.to_thread.run_sync(self._thread.join, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))

    # Everything below runs in the thread, or is called by it.

    def _work(self) -> None:
        try:
            self._serve()
        except MemoryError:
            # Not in a call, but between two of them: a thread that ended here would leave tasks waiting for ever.
            end_without_memory()

    def _serve(self) -> None:
        closed = False
        while not closed:
            requests = [self._requests.get()]
            if not self._one_by_one:
                # The size is read after the first request arrived, so requests made with it join its group.
                requests += [self._requests.get() for _ in range(self._requests.qsize())]
            closed = None in requests
            if group := [request for request in requests if request is not None]:
                self._carry_out(group)
                try:
                    # One call for the whole group: each call wakes the event loop, which costs a system call.
                    group[0].token.run_sync_soon(self._deliver, group)
                except trio.RunFinishedError:
                    if self._run_ended is not None:
                        self._run_ended()

    def _deliver(self, group: list[R]) -> None:
        if self._delivering is not None:
            self._delivering()
        for request in group:
            # Checked here, in the trio thread: only here can a cancellation not come in between.
            if request.task is not None:
                trio.lowlevel.reschedule(request.task, request.answer)


class OwnedThread(GroupThread["_Call"]):
    """Runs calls one after another in its own thread, so that a connector uses a resource where it opened it.

    A cancelled caller returns at once. The call itself cannot be interrupted: later calls wait for it, and its
    result is dropped. A call that has not begun when its caller is cancelled never begins, unless it is `final`:
    resources are released, however late. `busy` is True while a call is running, even if its caller was cancelled.
    """

    def __init__(self, name: str) -> None:
        self.busy = False
        # One by one: grouped calls would all be answered after the slowest of them.
        super().__init__(name, self._run, one_by_one=True)

    async def run(self, call: Callable[..., T], *args: Any, final: bool = False) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        result: T = await self.ask(_Call(call, args, final))
        return result

    def _run(self, calls: "list[_Call]") -> None:
        (call,) = calls
        # A call that nobody waits for must not begin: its write could come after those of the next run.
        if call.task is not None or call.final:
            self.busy = True
            call.answer = outcome.capture(call.call, *call.args)
            self.busy = False


class AsyncioCall:
    """An async function for asyncio, to be awaited on trio. All of a process run on one event loop, in its own thread.

    One loop, so that a session of a client library that one function opened works in another. A cancelled caller
    returns at once, and the function is cancelled.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function
        self.__wrapped__ = function

    async def __call__(self, *args: Any, **named: Any) -> Any:
        import asyncio

        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        # Captured there: SystemExit in a task of asyncio would end the loop, and leave everybody else waiting.
        work = asyncio.run_coroutine_threadsafe(outcome.acapture(self._function, *args, **named), _LOOP.start())

        def wake(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        work.add_done_callback(wake)
        try:
            await done.wait()
        except trio.Cancelled:
            work.cancel()
            raise
        return work.result().unwrap()


PluginT = TypeVar("PluginT")
ASYNC_METHODS = ("open", "process", "process_batch", "process_table", "close")


def bridge_to_asyncio(processor: PluginT) -> PluginT:
    """Have the async methods of a processor run on asyncio; return it."""
    for name in ASYNC_METHODS:
        if is_coroutine_function(method := getattr(processor, name)):
            setattr(processor, name, AsyncioCall(method))
    return processor


def is_coroutine_function(call: Callable[..., Any]) -> bool:
    # A callable object has its coroutine function on the class; the object itself is none.
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


class _AsyncioLoop:
    """The loop of asyncio of this process, started when it is needed. It ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: AbstractEventLoop | None = None
        self._process = 0

    def start(self) -> "AbstractEventLoop":
        # Not at the top: a command that never needs it would pay for the import.
        import asyncio

        with self._lock:
            # Not that of the parent: a fork has no threads.
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="conduit-asyncio", daemon=True).start()
            return self._loop


_LOOP = _AsyncioLoop()


@dataclass(slots=True, eq=False)
class _Call(Request):
    call: Callable[..., Any]
    args: tuple[Any, ...]
    final: bool


_TRIES = 3
_AT_ONCE_SECONDS = 0.001


class OwnClock(threading.local):
    """Measures how long calls in the calling thread take, without the time in which the machine ran others instead.

    What took long by this clock took long itself: it computed, or waited for something other than a core.
    """

    WHOLE_SECONDS = 0.01
    """What takes at most so long is measured as a whole, and so much may be left out too much: to ask the system
    before each call would cost more than most of them."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, core_waits: Callable[[], float] | None = None
    ) -> None:
        """Take the time that threads wait for a core from `core_waits`; else from the system, where it tells."""
        self.now = clock
        self._core_waits = core_waits
        self.asked_at = -math.inf
        """When this thread last asked the system: before `WHOLE_SECONDS` are over, `start` need not be called."""
        self._waits = 0.0

    def start(self) -> float:
        """Return the time at which a call begins, for `seconds_since`."""
        now = self.now()
        if now - self.asked_at < self.WHOLE_SECONDS:
            return now
        for _ in range(_TRIES):
            before, self._waits, now = now, self._ask(), self.now()
            # Else the thread may have lost its core between both answers: that wait would count for the wrong call.
            if now - before < _AT_ONCE_SECONDS:
                break
        self.asked_at = now
        return now

    def _ask(self) -> float:
        """Return for how many seconds this thread has waited for a core so far."""
        if self._core_waits is not None:
            return self._core_waits()
        try:
            # Not by `open`, whose buffers take longer than the rest.
            descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Nanoseconds on a core, nanoseconds ready without one, number of times on one.
                return int(os.read(descriptor, 100).split()[1]) / 1e9
            finally:
                os.close(descriptor)
        except (OSError, IndexError, ValueError):
            # Not Linux, or without these counts: then every second counts.
            return 0.0

    def seconds_since(self, started: float) -> float:
        """Return how long the call has taken so far."""
        seconds = self.now() - started
        if seconds <= self.WHOLE_SECONDS:
            return seconds
        before = self._waits
        # It asks the system, because that was before the call began. Only then the clock is read again: a wait after
        # that would be left out of a time that it is not in.
        return max(0.0, self.start() - started - (self._waits - before))


OWN_CLOCK = OwnClock()
