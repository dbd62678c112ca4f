"""While processes compute, the next batch is read and their next parts are sent: both take time, and a core each."""

import time
from pathlib import Path
from typing import Any

from conduit_connectors import memory
from hosted_worker import Hosted, results_of

import conduit_py
from conduit_py import Destination, Pipeline, Processor, Record, Source, processor, sdk
from conduit_py.batch import Batch, Span

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


@processor
def keep(fields: dict[str, Any]) -> dict[str, Any]:
    return dict(fields)


async def test_a_process_has_its_next_part_before_it_has_answered_for_this_one() -> None:
    sent: list[Hosted] = []
    most: dict[Hosted, int] = {}

    class Watched(Hosted):
        async def _ask(self, message: Any) -> Any:
            sent.append(self)
            most[self] = max(most.get(self, 0), sent.count(self))
            try:
                return await super()._ask(message)
            finally:
                sent.remove(self)

    values = [{"n": n} for n in range(40)]
    batch = Batch.of_payloads(Span("p", "s", 0, [b"%d" % n for n in range(40)]), values, range(40), None, dict)

    results = await results_of(Processor("node", keep, workers=2, where="process"), batch, kind=Watched)

    assert [each["n"] for each in results] == list(range(40))
    # Not more: what is there waits for this process, though another may have nothing left to do.
    assert list(most.values()) == [2, 2]
