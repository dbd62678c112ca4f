"""OwnedThread: the one thread in which a node's blocking calls run."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class OwnedThread:
    """Runs calls one after another in a thread of its own, so that what a connector opens there stays there.

    A caller that is cancelled leaves at once; the call itself cannot be interrupted, so its result is
    dropped when it comes, and later calls wait behind it. One that has not begun by then never does,
    unless it is `final`: what was opened is released, be it late. The thread is a daemon: a call that
    never returns does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._working = False
        self._thread = threading.Thread(target=self._work, name=f"conduit-{name}", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *args: Any, final: bool = False) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(call, args, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token(), final)
        self._jobs.put(job)

        def leave(_: object) -> trio.lowlevel.Abort:
            job.abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        result: T = await trio.lowlevel.wait_task_rescheduled(leave)
        return result

    @property
    def busy(self) -> bool:
        """Whether a call is under way, be it that nobody waits for it any more."""
        return self._working

    def close(self) -> None:
        """End the thread after the calls already given to it."""
        self._jobs.put(None)

    async def join(self) -> None:
        """Wait until the closed thread has ended, and with it the last call."""
        if self._thread.is_alive():
            # A limiter of its own: those who wait for stuck calls must not be in each other's way.
            await trio.to_thread.run_sync(self._thread.join, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.abandoned and not job.final:
                continue
            self._working = True
            result = outcome.capture(job.call, *job.args)
            self._working = False
            # Nobody waits any more when the event loop has ended, but what comes behind may be final.
            with suppress(trio.RunFinishedError):
                job.token.run_sync_soon(job.deliver, result)


class _Job:
    __slots__ = ("abandoned", "args", "call", "final", "task", "token")

    def __init__(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        task: trio.lowlevel.Task,
        token: trio.lowlevel.TrioToken,
        final: bool,
    ) -> None:
        self.call = call
        self.args = args
        self.task = task
        self.token = token
        self.final = final
        self.abandoned = False

    def deliver(self, result: outcome.Outcome[Any]) -> None:
        if not self.abandoned:
            trio.lowlevel.reschedule(self.task, result)
