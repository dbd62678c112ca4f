"""OwnedThread: the one thread in which a node's blocking calls run."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class OwnedThread:
    """Runs calls one after another in a thread of its own, so that what a connector opens there stays there.

    A caller that is cancelled leaves at once; the call itself cannot be interrupted, so its result is
    dropped when it comes, and later calls wait behind it. The thread is a daemon: a call that never
    returns does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"conduit-{name}", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(call, args, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        self._jobs.put(job)

        def leave(_: object) -> trio.lowlevel.Abort:
            job.abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        result: T = await trio.lowlevel.wait_task_rescheduled(leave)
        return result

    def close(self) -> None:
        """End the thread after the calls already given to it."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.abandoned:
                continue
            result = outcome.capture(job.call, *job.args)
            try:
                job.token.run_sync_soon(job.deliver, result)
            except trio.RunFinishedError:
                return


class _Job:
    __slots__ = ("abandoned", "args", "call", "task", "token")

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], task: trio.lowlevel.Task, token: trio.lowlevel.TrioToken
    ) -> None:
        self.call = call
        self.args = args
        self.task = task
        self.token = token
        self.abandoned = False

    def deliver(self, result: outcome.Outcome[Any]) -> None:
        if not self.abandoned:
            trio.lowlevel.reschedule(self.task, result)
