"""A process that is killed: changes of one PostgreSQL database into another, with a snapshot on request.

postgres_request_child.py FROM TO FOLDER SLOT [WHERE]    runs until it is killed; with WHERE it requests `t` first

It prints `durable` when the request survives a kill.
"""

import sys
from pathlib import Path

import trio
from conduit_connectors import postgres

from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.errors import PipelineIdle
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import SnapshotRequest
from conduit_py.store.sqlite.store import SqliteStore


async def main(origin: str, target: str, folder: str, slot: str, where: str | None) -> None:
    source = postgres.Source(
        url=origin, slot=slot, tables=["t"], snapshot="never", chunk_size=20, heartbeat_seconds=0.2
    )
    pipeline = Pipeline(
        "p",
        sources=[Source("s", source, batch_size=7)],
        destinations=[Destination("d", postgres.Destination(url=target, mode="upsert", create=False))],
    )
    async with await SqliteStore.open(Path(folder)) as store, trio.open_nursery() as nursery:
        supervisor = Supervisor(pipeline, store, recovery=Recovery(delay_seconds=0.1, delay_max_seconds=0.5))
        nursery.start_soon(supervisor.run)
        while where is not None:
            try:
                durable = await supervisor.request_snapshot("s", SnapshotRequest("t", where))
            except PipelineIdle:
                await trio.sleep(0.01)  # it is starting
                continue
            await durable.wait()
            print("durable", flush=True)
            where = None


if __name__ == "__main__":
    from_url, to_url, state, slot_name, *condition = sys.argv[1:]
    trio.run(main, from_url, to_url, state, slot_name, condition[0] if condition else None)
