"""OwnedThread and GroupThread: the one bridge between tasks of trio and a thread that does blocking work for them."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import outcome
import trio

T = TypeVar("T")
R = TypeVar("R", bound="Request")


class Request:
    """A request of a task to a thread. The thread sets `answer`; `task` is None after the task was cancelled."""

    __slots__ = ("answer", "task", "token")

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.token: trio.lowlevel.TrioToken
        self.answer: outcome.Outcome[Any]


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
        closed = False
        while not closed:
            requests = [self._requests.get()]
            if not self._one_by_one:
                # The size is read after the first request arrived, so requests made with it join its group.
                requests += [self._requests.get() for _ in range(self._requests.qsize())]
            closed = None in requests
            if group := [request for request in requests if request is not None]:
                self._carry_out(group)
                self._answer(group)

    def _answer(self, group: list[R]) -> None:
        try:
            group[0].token.run_sync_soon(self._deliver, group)
        except trio.RunFinishedError:
            if self._run_ended is not None:
                self._run_ended()

    def _deliver(self, group: list[R]) -> None:
        if self._delivering is not None:
            self._delivering()
        for request in group:
            if request.task is not None:
                trio.lowlevel.reschedule(request.task, request.answer)


class OwnedThread:
    """Runs calls one after another in its own thread, so that a connector uses a resource where it opened it.

    A cancelled caller returns at once. The call itself cannot be interrupted: later calls wait for it, and its
    result is dropped. A call that has not begun when its caller is cancelled never begins, unless it is `final`:
    resources are released, however late.
    """

    def __init__(self, name: str) -> None:
        self._working = False
        self._thread: GroupThread[_Call] = GroupThread(name, self._run, one_by_one=True)

    async def run(self, call: Callable[..., T], *args: Any, final: bool = False) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        result: T = await self._thread.ask(_Call(call, args, final))
        return result

    @property
    def busy(self) -> bool:
        """True while a call is running in the thread, even if its caller was cancelled."""
        return self._working

    def close(self) -> None:
        """End the thread after the calls that are already queued."""
        self._thread.close()

    async def join(self) -> None:
        """Wait until the last call has returned and the closed thread has ended."""
        await self._thread.join()

    def _run(self, calls: "list[_Call]") -> None:
        (call,) = calls
        if call.task is not None or call.final:
            self._working = True
            call.answer = outcome.capture(call.call, *call.args)
            self._working = False


class _Call(Request):
    __slots__ = ("args", "call", "final")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], final: bool) -> None:
        super().__init__()
        self.call = call
        self.args = args
        self.final = final
