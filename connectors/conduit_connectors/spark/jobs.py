"""Jobs: the Spark jobs of one connector, so that others' go on when these are cancelled."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cancelled(Exception):
    """The jobs of this connector were cancelled, so no more are started."""


class Jobs:
    """Tags the jobs that threads start inside `running`, and cancels all of them at once, from any thread."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session
        self._tag = f"conduit-{uuid.uuid4()}"
        self._cancelled = False
        self._idle = threading.Condition()
        self._running = 0
        # Java-side sessions tag jobs in the context, remote ones in the session; neither knows the other's way.
        self._remote = not hasattr(session, "_jsparkSession")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Jobs that this thread starts in the block can be cancelled. Raises Cancelled once they were."""
        with self._idle:
            if self._cancelled:
                raise Cancelled
            self._running += 1
        try:
            self._add_tag()
            try:
                yield
            finally:
                # Tags belong to threads, and threads may be used again for something else.
                self._remove_tag()
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def cancel(self) -> None:
        """Cancel what runs, and return when nothing does: a write that lasted longer would come after its time."""
        with self._idle:
            self._cancelled = True
            while self._running:
                # Again and again: between two jobs of one block there is nothing to cancel.
                self._cancel_tag()
                self._idle.wait(0.2)

    def _add_tag(self) -> None:
        if self._remote:
            self._session.addTag(self._tag)
        else:
            self._session.sparkContext.addJobTag(self._tag)

    def _remove_tag(self) -> None:
        if self._remote:
            self._session.removeTag(self._tag)
        else:
            self._session.sparkContext.removeJobTag(self._tag)

    def _cancel_tag(self) -> None:
        if self._remote:
            self._session.interruptTag(self._tag)
        else:
            self._session.sparkContext.cancelJobsWithTag(self._tag)
