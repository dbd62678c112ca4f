"""Snapshot: the result of a query, kept on disk while it is read: run again, a query may give other rows."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from conduit_connectors.spark.folder import LocalFolder
from conduit_connectors.spark.positions import Staged, staged_positions
from conduit_py.sdk import FatalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENT_ROWS = 100_000


class Segments(msgspec.Struct, frozen=True):
    """What a snapshot consists of: the rows of each of its files, in order."""

    snapshot: str
    rows: list[int]
    done: bool = False
    """Whether all of it was acked, and its files are gone."""


class Snapshot:
    """The staged rows of one origin, named by what it is read from: a new run finds those of the last.

    They stay until every row is acked. The next run from the beginning then takes a new snapshot.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self._folder = folder / hashlib.blake2b(origin.encode(), digest_size=8).hexdigest()
        self._segments: Segments | None = None
        self._segment = 0
        self._row = 0
        self._file: Any = None

    def continue_after(self, position: Staged) -> None:
        """Go on after a row of a snapshot that an earlier run has taken."""
        segments = self._load()
        if segments is None or segments.snapshot != position.snapshot:
            raise FatalError(
                f"the snapshot {position.snapshot} is no longer in {self._folder}",
                suggestion="restore that folder, or reset the position of the source to take a new snapshot",
            )
        self._segments = segments
        self._segment, self._row = position.segment, position.row + 1

    def is_taken(self) -> bool:
        """Whether there is a snapshot that was not acked to its end; if so, it will be read from its beginning."""
        segments = self._load()
        self._segments = None if segments is None or segments.done else segments
        return self._segments is not None

    def take(self, frame: "DataFrame") -> None:
        """Run the query and keep its result. A half-taken snapshot of a crashed run is thrown away."""
        before = self._load()
        number = int(before.snapshot.rpartition("-")[2]) + 1 if before is not None else 0
        name = f"{self._folder.name}-{number}"
        data = self._folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        from pyspark.sql import Observation, functions

        seen = Observation()
        frame = frame.observe(seen, functions.count(functions.lit(1)).alias("rows"))
        writer = frame.write.mode("overwrite").option("maxRecordsPerFile", SEGMENT_ROWS).option("compression", "zstd")
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(f"file://{data}")
        rows = [pq.read_metadata(path).num_rows for path in self._paths()]
        if sum(rows) != seen.get["rows"]:
            raise FatalError(
                f"of {seen.get['rows']} rows that Spark wrote to {data}, {sum(rows)} are there",
                suggestion="give a folder as `stage` that this machine and all executors share",
            )
        LocalFolder(self._folder).settle("data")
        self._save(Segments(name, rows))

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The next rows, at most `n`, and their positions; none at the end."""
        assert self._segments is not None
        rows = self._segments.rows
        while self._segment < len(rows) and self._row >= rows[self._segment]:
            self._segment, self._row, self._file = self._segment + 1, 0, None
        if self._segment >= len(rows) or self._segments.done:
            return [], []
        if self._file is None:
            # Read whole: a segment is bounded, and rows of it are then had by index.
            self._file = pq.ParquetFile(self._paths()[self._segment]).read()
        found = self._file.slice(self._row, n).to_pylist()
        numbers = range(self._row, self._row + len(found))
        self._row += len(found)
        return found, staged_positions(self._segments.snapshot, self._segment, numbers)

    def acked(self, position: Staged) -> None:
        """Let the files go once the last row is acked; what the snapshot was is remembered."""
        segments = self._segments
        if segments is None or segments.done or position.segment != _last_with_rows(segments.rows):
            return
        if position.row == segments.rows[position.segment] - 1:
            self._save(Segments(segments.snapshot, segments.rows, done=True))
            shutil.rmtree(self._folder / "data", ignore_errors=True)

    def forget(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _paths(self) -> list[Path]:
        """The files in the order of the partitions, which is in their names."""
        return sorted((self._folder / "data").glob("part-*.parquet"))

    def _load(self) -> Segments | None:
        try:
            return msgspec.json.decode((self._folder / "segments.json").read_bytes(), type=Segments)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise FatalError(f"{self._folder / 'segments.json'} is damaged: {error}") from error

    def _save(self, segments: Segments) -> None:
        self._segments = segments
        half = self._folder / f"segments.json.{os.getpid()}"
        with half.open("wb") as file:
            file.write(msgspec.json.encode(segments))
            file.flush()
            os.fsync(file.fileno())
        half.replace(self._folder / "segments.json")


def _last_with_rows(rows: list[int]) -> int:
    return max((index for index, count in enumerate(rows) if count), default=-1)
