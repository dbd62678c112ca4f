"""While processes compute, the next batch is read: both take time, and a core each."""

import time
from pathlib import Path
from typing import Any

from conduit_connectors import memory

import conduit_py
from conduit_py import Destination, Pipeline, Processor, Record, Source, processor, sdk

PATIENCE = 120.0


class ThreeBatches(sdk.SourceConnector[sdk.Options]):
    """Gives three batches of one record. It is quick, and leaves a file when the second one is read."""

    blocking = False

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark = mark
        self._given = 0

    def fresh(self) -> "ThreeBatches":
        return self

    def read(self, n: int) -> list[Record]:
        if self._given == 3:
            raise sdk.EndOfSource
        self._given += 1
        if self._given == 2:
            self._mark.touch()
        return [Record.of({"n": self._given}, position=b"%d" % self._given)]


def test_a_quick_source_is_read_while_processes_have_the_batch_before(tmp_path: Path) -> None:
    mark, into = tmp_path / "mark", list[Any]()

    def see_mark(fields: dict[str, Any]) -> dict[str, Any]:
        # The first record waits here until the second one is read, which nobody would do for it alone.
        until = time.monotonic() + PATIENCE
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return {**fields, "seen": mark.exists()}

    outcome = conduit_py.run(
        Pipeline(
            "ahead",
            sources=[Source("in", ThreeBatches(mark), batch_size=1)],
            processors=[Processor("see", processor(see_mark), where="process")],
            destinations=[Destination("list", memory.Destination(into=into))],
        )
    )

    assert outcome.status.value == "completed"
    assert [each.payload.after for each in into] == [{"n": n, "seen": True} for n in (1, 2, 3)]
