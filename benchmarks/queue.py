"""`python -m benchmarks.queue`: how many messages of a queue a second are tracked one by one and committed once each.

A queue in a SQLite file, the state in another, exactly once into a table of a third: every message has a row of
its own in the state that commits with its data, and is acked after that. All three are synced to the disk.
"""

import argparse
import sqlite3
import tempfile
import time
from functools import partial
from pathlib import Path

import trio
from conduit_connectors import sqlite, sqlite_queue
from conduit_connectors.sqlite_queue import SqliteQueue

from conduit_py import Destination, Pipeline, Source, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Payload, Record
from conduit_py.status import Stopper
from conduit_py.store.sqlite.store import SqliteStore


@processor
def fields(record: Record) -> Record:
    assert isinstance(record.payload.after, bytes)
    record.payload = Payload(after={"n": int(record.payload.after)})
    return record


def tracked(folder: Path) -> Pipeline:
    return Pipeline(
        "tracked",
        sources=[Source("queue", sqlite_queue.Source(path=folder / "queue.db"), batch_size=1000)],
        processors=[fields],
        destinations=[Destination("rows", sqlite.Destination(path=folder / "out.db", table="numbers"))],
        delivery="exactly_once",
    )


async def run(folder: Path, count: int) -> float:
    """Seconds until everything is committed and acked."""
    queue = SqliteQueue(folder / "queue.db")
    queue.open()
    for first in range(0, count, 1000):
        queue.send([b"%d" % number for number in range(first, min(first + 1000, count))])
    async with await SqliteStore.open(folder / "state") as store, trio.open_nursery() as nursery:
        supervisor = Supervisor(tracked(folder), store)
        started = time.perf_counter()
        nursery.start_soon(supervisor.run)
        while len(queue):  # noqa: ASYNC110 - a file tells nobody that it has changed
            await trio.sleep(0.01)
        seconds = time.perf_counter() - started
        supervisor.stop(Stopper.USER)
    queue.close()
    return seconds


def arrived(folder: Path) -> list[int]:
    connection = sqlite3.connect(folder / "out.db")
    try:
        return [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as name:
        seconds = trio.run(partial(run, Path(name), count))
        assert arrived(Path(name)) == list(range(count)), "every message once"
    print(f"{count} messages in {seconds:.1f} s: {count / seconds:,.0f} tracked messages/s")


if __name__ == "__main__":
    main()
