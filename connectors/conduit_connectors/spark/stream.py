"""MicroBatches: a streaming query of Spark. Its batches are spooled one at a time and committed when acked."""

import fcntl
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from py4j.protocol import Py4JError

from conduit_connectors.spark.folder import LocalFolder
from conduit_connectors.spark.positions import SnapshotPosition
from conduit_connectors.spark.spool import RowSpool, Segments, folder_for
from conduit_py.sdk import FatalError, TransientError
from conduit_py.sdk.spark import BadRows, JobCancelled, JobGroup, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class MicroBatches:
    """The rows of a query that has no end, in batches. Spark starts the next batch when all rows of one are acked.

    A batch is on disk before its first row is read. So its rows have the same order and positions in every run, even if
    Spark runs the batch again. One generation of a stream is one checkpoint of Spark; a run from the beginning is a new
    generation.
    """

    def __init__(self, folder: Path, origin: str, name: str, work: JobGroup) -> None:
        self._name = name
        self._job_group = work
        folder = folder_for(folder, origin)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder, name)
        self._stage = RowSpool(folder)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._over = self._stopping = self._closing = False
        self._query: StreamingQuery | None = None
        self._watcher: threading.Thread | None = None

    def begin(self, at: SnapshotPosition | None) -> None:
        """Continue after a row, or from the beginning. Called first, before the query is started."""
        state = self._stage.segments
        if at is None:
            # With nothing acked, the batch that is staged is the beginning.
            kept = state is not None and not state.done and state.before is None and self._is_checkpoint_of(state)
            self._generation = _generation(state) if state is not None and kept else self._next_generation(state)
            return
        if state is None or _stream(at.snapshot) != _stream(state.snapshot) or not self._is_checkpoint_of(state):
            raise FatalError(
                f"the checkpoint and the stage of {at.snapshot} are no longer in {self._stage.folder}",
                suggestion="restore that folder, or reset the position of the source to read everything again",
            )
        self._generation = _generation(state)
        # The next batch may have been staged before any of its rows was acked.
        if at != state.before:
            if at.snapshot != state.snapshot:
                raise FatalError(
                    f"the rows that follow batch {_number(at.snapshot)} of {self._name} are no longer staged",
                    suggestion="reset the position of the source to read everything again",
                )
            self._stage.seek(at)

    def start(self, frame: "DataFrame", trigger: dict[str, Any]) -> None:
        """Start the query, which runs until it fails, has no more to read, or `close`."""
        self._callback = Callback(frame.sparkSession, self._batch)
        writer = frame.writeStream.foreachBatch(self._callback).trigger(**trigger)
        self._query = writer.option("checkpointLocation", f"file://{self._checkpoint}").start()
        self._watcher = threading.Thread(target=self._watch, name="conduit-spark-stream", daemon=True)
        self._watcher.start()

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Wait for the next rows, at most `n`; none when there will be no more. Raises the error of the query."""
        with self._changed:
            while not self._stopping:
                rows, positions = self._stage.read(n)
                if rows:
                    return rows, positions
                if self._failure is not None:
                    raise self._failure
                if self._over:
                    break
                self._changed.wait()
            return [], []

    def ack(self, position: SnapshotPosition) -> None:
        with self._changed:
            self._stage.ack(position)
            self._changed.notify_all()

    def stop(self) -> None:
        """Return no more rows and start no more batches. Rows that were returned may still be acked."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the query. A batch that was not acked to its end is not committed by Spark."""
        with self._changed:
            self._closing = self._stopping = True
            self._changed.notify_all()
        if self._query is not None:
            # If Java is gone, the query is too.
            with suppress(Py4JError, OSError):
                self._query.stop()
            self._callback.close()
        if self._watcher is not None:
            self._watcher.join()
        self._lock.close()

    def _batch(self, frame: "DataFrame", number: int) -> bool:
        """Spool a batch and wait until it is acked; whether Spark may commit it. Runs in a thread of Spark."""
        try:
            staged = _number(self._stage.segments.snapshot) if self._stage.segments is not None else -1
            if number > staged:
                # Spark may have committed the batch before without its acks, if the last run was killed just then.
                self._wait_until_acked()
                self._take(frame, number)
            elif number < staged:
                raise FatalError(
                    f"Spark runs batch {number} of {self._name} after batch {staged}: an older checkpoint was restored",
                    suggestion="reset the position of the source to read everything again",
                )
            self._wait_until_acked()
        except Exception as error:  # a boundary: whatever it is, the reader reports it
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            return False
        return True

    def _take(self, frame: "DataFrame", number: int) -> None:
        with _errors(f"batch {number} of {self._name}"), self._job_group.running():
            rows = self._stage.write(frame)
        if not sum(rows):
            return
        # Spark's record of the batch must survive a power failure if the spool does.
        LocalFolder(self._checkpoint).settle("")
        before = self._stage.segments
        last = before.last if before is not None and before.rows else None
        segments = Segments(self._snapshot_name(number), rows, query=_query_id(self._checkpoint), before=last)
        with self._changed:
            # Committed before the first row is read, so that every run gives the same rows at the same positions.
            self._stage.keep(segments)
            self._changed.notify_all()

    def _wait_until_acked(self) -> None:
        with self._changed:
            while self._stage.segments is not None and not self._stage.segments.done:
                if self._closing:
                    raise JobCancelled
                self._changed.wait()

    def _watch(self) -> None:
        """Wait for the end of the query, which may come outside of any batch."""
        assert self._query is not None
        failure: Exception | None = None
        try:
            with _errors(f"the stream of {self._name}"):
                self._query.awaitTermination()
        except (FatalError, TransientError) as error:
            failure = error
        with self._changed:
            self._over = True
            # The error of a batch is more specific than that of the query.
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _next_generation(self, state: Segments | None) -> int:
        """Start empty, under a number that no position of an earlier generation has."""
        self._generation = _generation(state) + 1 if state is not None else 0
        for path in self._stage.folder.glob("checkpoint-*"):
            shutil.rmtree(path)
        self._stage.keep(Segments(self._snapshot_name(-1), [], done=True))
        return self._generation

    def _is_checkpoint_of(self, state: Segments) -> bool:
        folder = self._stage.folder / f"checkpoint-{_generation(state)}"
        return state.query is not None and state.query == _query_id(folder)

    def _snapshot_name(self, batch: int) -> str:
        return f"{self._stage.folder.name}.{self._generation}.{batch}"

    @property
    def _checkpoint(self) -> Path:
        return self._stage.folder / f"checkpoint-{self._generation}"


class _Metadata(msgspec.Struct):
    """The metadata of a query in Spark's checkpoint."""

    id: str


def _query_id(checkpoint: Path) -> str | None:
    try:
        return msgspec.json.decode((checkpoint / "metadata").read_bytes(), type=_Metadata).id
    except (OSError, msgspec.MsgspecError):
        return None


def _lock(folder: Path, name: str) -> TextIO:
    """Lock the folder: Spark would end the query of one source when another starts, and both would write to it."""
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise TransientError(
            f"another source reads the stream of {name} with the same stage, {folder}",
            suggestion="give each source a `stage` of its own, or stop the other run",
        ) from None
    return lock


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Translate errors of Spark. Rows that cannot be read are fatal here: Spark does not say which they are."""
    try:
        with spark_errors(what):
            yield
    except BadRows as bad:
        raise FatalError(f"{what} cannot be read: {bad}", suggestion="correct the data, or what is read of it") from bad


def _stream(snapshot: str) -> str:
    return snapshot.rpartition(".")[0]


def _generation(state: Segments) -> int:
    return int(_stream(state.snapshot).rpartition(".")[2])


def _number(snapshot: str) -> int:
    return int(snapshot.rpartition(".")[2])


class Callback:
    """The function that Spark calls with a batch and its number; `function` returns whether Spark may commit it.

    If it may not, the connection is closed: Spark then takes the batch for failed and ends the query. An exception
    would do the same with two pages of stack traces. PySpark never ends the thread of its calls; `close` does.
    """

    def __init__(self, session: "SparkSession", function: Callable[["DataFrame", int], bool]) -> None:
        self._client: Any = session.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        self._function = function
        self._connection: Any = None

    def __call__(self, frame: "DataFrame", number: int) -> None:
        self._connection = self._client.get_thread_connection()
        if not self._function(frame, number):
            self.close()

    def close(self) -> None:
        """Shut the socket down. Closing the connection itself would wait for the thread that reads from it."""
        line = self._connection.socket if self._connection is not None else None
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
