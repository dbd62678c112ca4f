"""A worker that is killed or frozen: it takes objects from a shared queue into a table, a few records at a time.

The only argument is JSON: `id`, `plugin` and `options` are those of the source. `state` is the address of the
PostgreSQL database with the state, `out` the SQLite file, `freeze_at` the record in which it stops itself.
"""

import json
import logging
import os
import signal
import sys
from typing import Any

import trio
from conduit_connectors import sqlite

from conduit_py import Destination, Pipeline, Record, Source, TransactionLimits, processor
from conduit_py.backoff import Recovery
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import registry
from conduit_py.store.postgres.store import PostgresStore

PAUSE_SECONDS = 0.002


def pipeline(settings: dict[str, Any]) -> Pipeline:
    @processor
    async def slowly(record: Record) -> Record:
        await trio.sleep(PAUSE_SECONDS)
        if record.payload["n"] == settings.get("freeze_at"):
            # What was read before is committed by now, so nobody else waits for a lock of ours.
            await trio.sleep(2)
            print("frozen", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            print("thawed", flush=True)
        return record

    source: Any = registry.find("source", settings["plugin"])
    return Pipeline(
        settings["id"],
        sources=[Source("queue", source(**settings["options"]), batch_size=10)],
        processors=[slowly],
        destinations=[Destination("rows", sqlite.Destination(path=settings["out"], table="lines"))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=20, max_seconds=0.3),
    )


async def main(settings: dict[str, Any]) -> None:
    # One that is frozen ends with the error that it finds.
    retries = 0 if "freeze_at" in settings else None
    recovery = Recovery(retries=retries, delay_seconds=0.1, delay_max_seconds=1.0)
    async with await PostgresStore.open(settings["state"]) as store:
        state = await Supervisor(pipeline(settings), store, recovery=recovery).run()
    print(state)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    trio.run(main, json.loads(sys.argv[1]))
