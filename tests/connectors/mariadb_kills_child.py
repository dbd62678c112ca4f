"""A process that is killed: changes of one database of MariaDB into the tables of another.

mariadb_kills_child.py FROM TO FOLDER DELIVERY    runs until it is killed
"""

import sys
from pathlib import Path

import trio
from conduit_connectors import mysql
from mariadb_changes import replica_of

from conduit_py import Destination, Pipeline, Record, Recovery, Source, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.sqlite.store import SqliteStore


@processor
def without_database(record: Record) -> Record:
    """Name the table alone, so that the destination writes to its own database."""
    record.metadata["opencdc.collection"] = record.metadata["opencdc.collection"].rpartition(".")[2]
    return record


async def main(origin: str, target: str, folder: str, once: bool) -> int:
    source = mysql.Source(
        url=origin, server_id=replica_of(origin), tables=["t", "marker"], chunk_size=20, heartbeat_seconds=0.2
    )
    pipeline = Pipeline(
        "p",
        sources=[Source("s", source, batch_size=7, atomic=once)],
        processors=[without_database],
        destinations=[Destination("d", mysql.Destination(url=target, mode="upsert", create=False))],
        delivery="exactly_once" if once else "at_least_once",
    )
    recovery = Recovery(delay_seconds=0.1, delay_max_seconds=0.5)
    async with await SqliteStore.open(Path(folder)) as store:
        state = await Supervisor(pipeline, store, recovery=recovery).run()
    print(state.error)
    return 3


if __name__ == "__main__":
    from_url, to_url, state, guarantee = sys.argv[1:]
    sys.exit(trio.run(main, from_url, to_url, state, guarantee == "exactly_once"))
