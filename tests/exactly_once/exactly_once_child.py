"""A process that is killed: a journal through a processor with state into a database and another journal.

`fill FOLDER START STOP` adds these numbers to the input; `run FOLDER` runs the pipeline to its end and exits with
0, or with 3 when it failed and may be started again.
"""

import sys
from functools import partial
from pathlib import Path

import trio
from conduit_connectors import journal, memory, sqlite

from conduit_py import Destination, Pipeline, Record, Source, State, TransactionLimits, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store

TRY_AGAIN = 3


@processor(state=True)
def summed(record: Record, state: State) -> Record:
    total = state.get("sum", 0) + record.payload["n"]
    state.put("sum", total)
    record.payload["sum"] = total
    return record


def filling(folder: Path, numbers: range) -> Pipeline:
    source = memory.Source(records=[{"n": n} for n in numbers])
    return Pipeline(
        "fill",
        sources=[Source("numbers", source, batch_size=4096)],
        destinations=[Destination("in", journal.Destination(path=folder / "in"))],
    )


def running(folder: Path) -> Pipeline:
    return Pipeline(
        "sums",
        sources=[Source("in", journal.Source(path=folder / "in", until="end"))],
        processors=[summed],
        destinations=[
            Destination("rows", sqlite.Destination(path=folder / "out.db", table="sums")),
            Destination("out", journal.Destination(path=folder / "out")),
        ],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=500),
    )


async def run(pipeline: Pipeline, store: Store) -> int:
    async with store:
        state = await Supervisor(pipeline, store).run()
    if state.status is not Status.COMPLETED:
        print(state)
    return 0 if state.status is Status.COMPLETED else TRY_AGAIN


async def main(what: str, folder: Path, *numbers: int) -> int:
    if what == "fill":
        return await run(filling(folder, range(*numbers)), MemoryStore())
    return await run(running(folder), await SqliteStore.open(folder / "state"))


if __name__ == "__main__":
    sys.exit(trio.run(partial(main, sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
