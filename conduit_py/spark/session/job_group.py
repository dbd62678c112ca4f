"""JobGroup: one user's share of the Spark session: a hold on it, and jobs that can be cancelled together."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import trio
from py4j.protocol import Py4JError

from conduit_py.sdk.plugin import Connector, OptionsT
from conduit_py.spark.session.errors import JobCancelled
from conduit_py.spark.session.shared_session import SparkOptions, shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobGroup:
    """Jobs of several threads with a common tag, so that another thread can cancel them and no others."""

    def __init__(self) -> None:
        self._tag = f"conduit-{uuid.uuid4()}"
        self._changed = threading.Condition()
        self._session: SparkSession | None = None
        self._cancelled = False
        self._closed = False
        self._running = 0

    def start(self, options: SparkOptions) -> None:
        """Acquire the session, which may take seconds. Raises JobCancelled if the group was closed meanwhile."""
        session = shared.acquire(options)
        with self._changed:
            if not self._closed:
                self._session = session
                return
        shared.release()
        raise JobCancelled

    @property
    def started(self) -> bool:
        return self._session is not None

    @contextmanager
    def running(self) -> Iterator["SparkSession"]:
        """Run jobs in this thread. Raises JobCancelled once the group is cancelled."""
        with self._changed:
            if self._cancelled or self._session is None:
                raise JobCancelled
            session = self._session
            self._running += 1
        try:
            add, remove, _ = _tags(session)
            add(self._tag)
            try:
                yield session
            finally:
                # Tags belong to threads, and this thread may be reused for something else.
                remove(self._tag)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def cancel(self) -> None:
        """Cancel all jobs, and return when none runs: a write that went on would be seen after the stop."""
        with self._changed:
            self._cancelled = True
            while self._running and self._session is not None:
                try:
                    # Repeated: between two jobs of one block there is nothing to cancel.
                    _tags(self._session)[2](self._tag)
                except (Py4JError, OSError):
                    return  # Java is gone, and all jobs with it.
                self._changed.wait(0.2)

    def close(self) -> None:
        """Cancel all jobs and release the session. Nothing can be run afterwards."""
        self.cancel()
        with self._changed:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            shared.release()


class SparkConnector(Connector[OptionsT]):
    """A connector that uses Spark. `teardown` cancels its jobs, in whatever thread they run."""

    _job_group: JobGroup

    def fresh(self) -> Self:
        new = super().fresh()
        new._job_group = JobGroup()
        return new

    async def teardown(self) -> None:
        # Async: the thread of the sync methods may be waiting for the very job that must be cancelled.
        await trio.to_thread.run_sync(self._close, abandon_on_cancel=True)

    def _close(self) -> None:
        self._job_group.close()


_Tagging = Callable[[str], object]


def _tags(session: "SparkSession") -> tuple[_Tagging, _Tagging, _Tagging]:
    """The functions that add a tag, remove it, and cancel by it. A remote session has no context to ask."""
    if hasattr(session, "_jsparkSession"):
        context = session.sparkContext
        return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
    return session.addTag, session.removeTag, session.interruptTag
