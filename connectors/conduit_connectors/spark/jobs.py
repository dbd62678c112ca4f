"""Jobs: calls that run a few at a time, each in a thread, and whose results are had in the order they began."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from conduit_connectors.spark.gather import Load
from conduit_py.sdk import TransientError


class Jobs:
    """While Spark is at work on one load the next can be handed over: most of a job is waiting.

    Used by one thread at a time, but for `close`. `on_ended` is called when a job has ended, by the thread that ran
    it.
    """

    def __init__(self, at_once: int, on_ended: Callable[[], None]) -> None:
        self._at_once = at_once
        self._on_ended = on_ended
        self._begun: deque[tuple[Load, Future[Any]]] = deque()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def full(self) -> bool:
        """Whether as many have begun, and not been taken, as may."""
        return len(self._begun) >= self._at_once

    @property
    def oldest_has_ended(self) -> bool:
        return bool(self._begun) and self._begun[0][1].done()

    def begin(self, load: Load, call: Callable[[], Any]) -> None:
        assert not self.full
        future: Future[Any] = Future()
        self._begun.append((load, future))
        with self._closing:
            if self._closed:
                # Nobody would run it, and whoever waits for it would do so for ever.
                future.set_exception(TransientError("the destination was closed before a job of it began"))
                return
            if len(self._threads) < self._at_once:
                # Daemons: a call into a Java that does not answer must not keep the process from ending.
                self._threads.append(threading.Thread(target=self._run, name="conduit-spark", daemon=True))
                self._threads[-1].start()
            self._calls.put((future, call))

    def take(self) -> tuple[Load, Future[Any]]:
        """The oldest, which counts no more."""
        return self._begun.popleft()

    def await_oldest(self) -> Any:
        """Wait for the result of the oldest. One that has failed stays, and its error is raised again and again."""
        result = self._begun[0][1].result()
        self._begun.popleft()
        return result

    def close(self) -> None:
        """Let the threads end when they have no more to do."""
        with self._closing:
            self._closed = True
            for _ in self._threads:
                self._calls.put(None)

    def _run(self) -> None:
        while (begun := self._calls.get()) is not None:
            future, call = begun
            try:
                future.set_result(call())
            except BaseException as error:  # a border: whoever takes the result gets it
                future.set_exception(error)
            # Not until the next one comes: a load is large, and so are the records it was made of.
            del begun, future, call
            self._on_ended()
