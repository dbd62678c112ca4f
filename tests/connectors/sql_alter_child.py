"""A process that is killed: rows whose fields and types grow, into a table that grows with them.

sql_alter_child.py FOLDER [URL]    runs to the end; SQLite in the folder, or the PostgreSQL database at the address
"""

import sys
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import memory, postgres, sqlite

from conduit_py import Destination, Pipeline, Source, TransactionLimits
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore


def records() -> list[dict[str, Any]]:
    """Forty rows. From the tenth on they have another field, and from the twentieth on its values need another type."""
    return [{"n": n} | ({"v": n if n < 20 else n + 0.5} if n >= 10 else {}) for n in range(40)]


async def main(folder: Path, url: str | None) -> int:
    options: Any = {"table": "t", "on_new_field": "add", "on_type": "widen"}
    destination: Any = (
        sqlite.Destination(path=folder / "data.db", **options)
        if url is None
        else postgres.Destination(url=url, **options)
    )
    pipeline = Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=records()), batch_size=5)],
        destinations=[Destination("d", destination)],
        delivery="exactly_once",
        # By records only: on a busy machine five of them may take longer than the usual second.
        transaction=TransactionLimits(max_records=10, min_seconds=600, max_seconds=600),
    )
    async with await SqliteStore.open(folder / "state") as store:
        state = await Supervisor(pipeline, store).run()
    return 0 if state.status is Status.COMPLETED else 3


if __name__ == "__main__":
    sys.exit(trio.run(main, Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
