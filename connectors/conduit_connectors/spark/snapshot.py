"""Snapshot: the result of a query, kept on disk while it is read."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_connectors.spark.positions import Staged
from conduit_connectors.spark.stage import Segments, Stage
from conduit_py.sdk import FatalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Snapshot:
    """The staged rows of one origin, named by what it is read from: a new run finds those of the last.

    They stay until every row is acked. The next run from the beginning then takes a new snapshot.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self._stage = Stage(folder_for(folder, origin))

    def continue_after(self, position: Staged) -> None:
        """Go on after a row of a snapshot that an earlier run has taken."""
        segments = self._stage.segments
        if segments is None or segments.snapshot != position.snapshot:
            raise FatalError(
                f"the snapshot {position.snapshot} is no longer in {self._stage.folder}",
                suggestion="restore that folder, or reset the position of the source to take a new snapshot",
            )
        self._stage.seek(position)

    def is_taken(self) -> bool:
        """Whether there is a snapshot that was not acked to its end; if so, it will be read from its beginning."""
        return self._stage.segments is not None and not self._stage.segments.done

    def take(self, frame: "DataFrame") -> None:
        """Run the query and keep its result. A half-taken snapshot of a crashed run is thrown away."""
        before = self._stage.segments
        number = int(before.snapshot.rpartition("-")[2]) + 1 if before is not None else 0
        self._stage.keep(Segments(f"{self._stage.folder.name}-{number}", self._stage.write(frame)))

    def read(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The next rows, at most `n`, and their positions; none at the end."""
        return self._stage.read(n)

    def acked(self, position: Staged) -> None:
        """Let the files go once the last row is acked; what the snapshot was is remembered."""
        self._stage.acked(position)

    def forget(self) -> None:
        """Remove everything."""
        self._stage.forget()


def folder_for(folder: Path, origin: str) -> Path:
    """Where, in the folder for all, what is read from an origin is staged."""
    return folder / hashlib.blake2b(origin.encode(), digest_size=8).hexdigest()
