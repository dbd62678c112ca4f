"""A process that is killed: changes of one PostgreSQL database into the tables of another.

cdc_child.py FROM TO FOLDER SLOT DELIVERY    runs until it is killed; requests a snapshot of `cdc_rows` on SIGUSR1
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import trio
from conduit_connectors import postgres

from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.errors import PipelineIdle
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import SnapshotRefused, SnapshotRequest
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.testing.cdc_tables import TABLES


async def main(origin: str, target: str, folder: str, slot: str, once: bool) -> int:
    source = postgres.Source(url=origin, slot=slot, tables=list(TABLES), chunk_size=20, heartbeat_seconds=0.2)
    pipeline = Pipeline(
        "p",
        sources=[Source("s", source, batch_size=7, atomic=once)],
        destinations=[Destination("d", postgres.Destination(url=target, mode="upsert", create=False))],
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
            await supervisor.request_snapshot("s", SnapshotRequest("public.cdc_rows"))


if __name__ == "__main__":
    from_url, to_url, state, slot_name, guarantee = sys.argv[1:]
    sys.exit(trio.run(main, from_url, to_url, state, slot_name, guarantee == "exactly_once"))
