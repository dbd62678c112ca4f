"""RowSpool: rows that Spark has written to disk to be read from there. Run again, a query may give other rows."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from conduit_connectors.file.disk import sync_path
from conduit_connectors.spark.folder import LocalFolder
from conduit_connectors.spark.positions import SnapshotPosition, staged_positions
from conduit_py.sdk import FatalError
from conduit_py.sdk.arrow import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SEGMENT_ROWS = 100_000
_WRITTEN_WITH = {
    "maxRecordsPerFile": str(SEGMENT_ROWS),
    "compression": "zstd",
    # Indexes of a file cost a quarter of the time to write it, and these rows are all read, once.
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class Segments(msgspec.Struct, frozen=True):
    """What a spool consists of: the number of rows in each of its files, in order."""

    snapshot: str
    rows: list[int]
    done: bool = False
    """Whether all of it was acked, and its files are gone."""
    query: str | None = None
    """For a batch of a stream: Spark's id of the query."""
    before: SnapshotPosition | None = None
    """For a batch of a stream: the last row of the batch before."""

    @property
    def last(self) -> SnapshotPosition:
        """The position of the last row; without rows, one that no row has."""
        segment = max((index for index, count in enumerate(self.rows) if count), default=-1)
        return SnapshotPosition(self.snapshot, segment, self.rows[segment] - 1 if segment >= 0 else -1)


class RowSpool:
    """A folder with the rows of one query at a time. They stay until every row is acked.

    `keep` commits them: it replaces the rows of an earlier query in one step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = self._load()
        self._segment = 0
        self._row = 0
        self._file: Any = None

    def seek(self, position: SnapshotPosition) -> None:
        """Continue after a row. This row and all before it are acked, or the position would not be stored."""
        assert self.segments is not None
        if self.segments.done and position != self.segments.last:
            raise FatalError(
                f"the rows that follow segment {position.segment}, row {position.row} of {self.segments.snapshot} "
                "were acked, and are no longer kept",
                suggestion="reset the position of the source to read everything again",
            )
        self._segment, self._row = position.segment, position.row + 1
        self.ack(position)

    def write(self, frame: "DataFrame") -> list[int]:
        """Run the query and return how many rows each file has. Rows that were never kept are thrown away."""
        from pyspark.sql import Observation, functions

        data = self.folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        seen = Observation()
        frame = frame.observe(seen, functions.count(functions.lit(1)).alias("rows"))
        frame.write.mode("overwrite").options(**_WRITTEN_WITH).parquet(f"file://{data}")
        rows = [pq.read_metadata(path).num_rows for path in self._paths()]
        if sum(rows) != seen.get["rows"]:
            raise FatalError(
                f"of {seen.get['rows']} rows that Spark wrote to {data}, {sum(rows)} are there",
                suggestion="give a folder as `stage` that this machine and all executors share",
            )
        return rows

    def keep(self, segments: Segments) -> None:
        """Commit what was written last, durably. Reading starts at its first row."""
        LocalFolder(self.folder).settle("data")
        self._save(segments)
        self._segment, self._row, self._file = 0, 0, None

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The next rows, at most `n`, and their positions; none at the end."""
        rows = self.segments.rows if self.segments is not None and not self.segments.done else []
        while self._segment < len(rows) and self._row >= rows[self._segment]:
            self._segment, self._row, self._file = self._segment + 1, 0, None
        if self._segment >= len(rows):
            return [], []
        if self._file is None:
            # As a whole: a segment is bounded, and its rows can then be sliced by index.
            self._file = pq.ParquetFile(self._paths()[self._segment]).read()
        assert self.segments is not None
        found = rows_of(self._file.slice(self._row, n))
        numbers = range(self._row, self._row + len(found))
        self._row += len(found)
        return found, staged_positions(self.segments.snapshot, self._segment, numbers)

    def ack(self, position: SnapshotPosition) -> None:
        """Delete the files once the last row is acked; the segments stay known."""
        if self.segments is None or self.segments.done or position != self.segments.last:
            return
        self._save(msgspec.structs.replace(self.segments, done=True))
        self._file = None
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def forget(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.segments = None

    def _paths(self) -> list[Path]:
        """The files in the order of the partitions, which is in their names."""
        return sorted((self.folder / "data").glob("part-*.parquet"))

    def _load(self) -> Segments | None:
        try:
            return msgspec.json.decode((self.folder / "segments.json").read_bytes(), type=Segments)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise FatalError(f"{self.folder / 'segments.json'} is damaged: {error}") from error

    def _save(self, segments: Segments) -> None:
        half = self.folder / f"segments.json.{os.getpid()}"
        with half.open("wb") as file:
            file.write(msgspec.json.encode(segments))
            file.flush()
            os.fsync(file.fileno())
        half.replace(self.folder / "segments.json")
        sync_path(self.folder)
        self.segments = segments


class QuerySnapshot:
    """The spooled rows of one query, in a folder named after it: a new run finds those of the last.

    They stay until every row is acked. The next run from the beginning then takes a new snapshot.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self._stage = RowSpool(folder_for(folder, origin))

    def continue_after(self, position: SnapshotPosition) -> None:
        """Continue after a row of a snapshot that an earlier run has taken."""
        segments = self._stage.segments
        if segments is None or segments.snapshot != position.snapshot:
            raise FatalError(
                f"the snapshot {position.snapshot} is no longer in {self._stage.folder}",
                suggestion="restore that folder, or reset the position of the source to take a new snapshot",
            )
        self._stage.seek(position)

    def is_taken(self) -> bool:
        """Whether there is a snapshot that was not acked to its end. It is read from its beginning then."""
        return self._stage.segments is not None and not self._stage.segments.done

    def take(self, frame: "DataFrame") -> None:
        """Run the query and keep its result. A half-taken snapshot of a crashed run is thrown away."""
        before = self._stage.segments
        number = int(before.snapshot.rpartition("-")[2]) + 1 if before is not None else 0
        self._stage.keep(Segments(f"{self._stage.folder.name}-{number}", self._stage.write(frame)))

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The next rows, at most `n`, and their positions; none at the end."""
        return self._stage.read(n)

    def ack(self, position: SnapshotPosition) -> None:
        """Delete the files once the last row is acked; the name of the snapshot stays known."""
        self._stage.ack(position)

    def forget(self) -> None:
        """Remove everything."""
        self._stage.forget()


def folder_for(folder: Path, origin: str) -> Path:
    """The folder, below the one for all, for the rows of an origin."""
    return folder / hashlib.blake2b(origin.encode(), digest_size=8).hexdigest()
