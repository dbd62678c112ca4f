"""A process that is killed: changes of one database into the tables of another, of PostgreSQL or of MariaDB.

cdc_child.py FROM TO FOLDER READER DELIVERY

READER is the name of the slot, or the number of the replica. It runs until it is killed, and requests a snapshot of
`cdc_rows` on SIGUSR1.
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import mysql, postgres

from conduit_py import Destination, Pipeline, Record, Recovery, Source, processor
from conduit_py.errors import PipelineIdle
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import SnapshotRefused, SnapshotRequest
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.testing.cdc_tables import TABLES


@processor
def name_table_alone(record: Record) -> Record:
    """Without its database, so that the destination writes to its own."""
    record.metadata["opencdc.collection"] = record.metadata["opencdc.collection"].rpartition(".")[2]
    return record


def connectors(origin: str, target: str, reader: str) -> tuple[Any, Any]:
    if origin.startswith("mysql"):
        return (
            mysql.Source(url=origin, server_id=int(reader), tables=list(TABLES), chunk_size=20, heartbeat_seconds=0.2),
            mysql.Destination(url=target, mode="upsert", create=False),
        )
    return (
        postgres.Source(url=origin, slot=reader, tables=list(TABLES), chunk_size=20, heartbeat_seconds=0.2),
        postgres.Destination(url=target, mode="upsert", create=False),
    )


async def main(origin: str, target: str, folder: str, reader: str, once: bool) -> int:
    source, destination = connectors(origin, target, reader)
    pipeline = Pipeline(
        "p",
        sources=[Source("s", source, batch_size=7, atomic=once)],
        processors=[name_table_alone],
        destinations=[Destination("d", destination)],
        delivery="exactly_once" if once else "at_least_once",
    )
    recovery = Recovery(delay_seconds=0.1, delay_max_seconds=0.5)
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async with await SqliteStore.open(Path(folder)) as store, trio.open_nursery() as nursery:
            supervisor = Supervisor(pipeline, store, recovery=recovery)
            nursery.start_soon(request_snapshots, supervisor, signals)
            state = await supervisor.run()
            nursery.cancel_scope.cancel()
    print(state.error)
    return 3


async def request_snapshots(supervisor: Supervisor, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        # Between two runs there is nobody to take it: the server may be away.
        with suppress(PipelineIdle, SnapshotRefused):
            await supervisor.request_snapshot("s", SnapshotRequest("cdc_rows"))


if __name__ == "__main__":
    from_url, to_url, state, reader_name, guarantee = sys.argv[1:]
    sys.exit(trio.run(main, from_url, to_url, state, reader_name, guarantee == "exactly_once"))
