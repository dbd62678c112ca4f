"""A process that is killed: numbers into two tables of one SQLite file.

one_database_child.py FOLDER    runs to the end
"""

import sys
from pathlib import Path

import trio
from conduit_connectors import memory, sqlite

from conduit_py import Destination, Pipeline, Source, TransactionLimits
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore


async def main(folder: Path) -> int:
    pipeline = Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=[{"n": n} for n in range(100)]), batch_size=10)],
        destinations=[
            Destination(table, sqlite.Destination(path=folder / "data.db", table=table)) for table in ("a", "b")
        ],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=20),
    )
    async with await SqliteStore.open(folder / "state") as store:
        state = await Supervisor(pipeline, store).run()
    return 0 if state.status is Status.COMPLETED else 3


if __name__ == "__main__":
    sys.exit(trio.run(main, Path(sys.argv[1])))
