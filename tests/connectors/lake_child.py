"""A process that is killed: rows into a lake, a DuckDB file or a database behind SQLAlchemy.

lake_child.py FOLDER KIND    runs to the end; KIND is duckdb, sqlalchemy, iceberg or iceberg-upsert
KILL_IN_COMMIT=N             kills it before the catalog gets the Nth commit of rows
REST_CATALOG, REST_TABLE     the properties of a catalog behind REST, as JSON, and the table there
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import memory

from conduit_py import Destination, Pipeline, Record, Source, TransactionLimits
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore


def records(kind: str) -> list[Any]:
    """Forty records; for upserts each key twice, the second time with another value."""
    if kind == "iceberg-upsert":
        return [Record.of({"n": n % 20, "v": n}, key={"n": n % 20}) for n in range(40)]
    return [{"n": n, "v": n} for n in range(40)]


def make_destination(folder: Path, kind: str) -> Any:
    if kind == "duckdb":
        from conduit_connectors import duckdb

        return duckdb.Destination(path=folder / "data.duckdb", table="t")
    if kind == "sqlalchemy":
        from conduit_connectors import sqlalchemy

        return sqlalchemy.Destination(url=f"sqlite:///{folder}/data.db", table="t")
    from conduit_connectors import iceberg
    from lake_tables import catalog_of

    catalog, table = catalog_of(folder), "db.t"
    if "REST_CATALOG" in os.environ:
        catalog, table = json.loads(os.environ["REST_CATALOG"]), os.environ["REST_TABLE"]
    kill_in_commit(int(os.environ.get("KILL_IN_COMMIT", 0)))
    mode: Any = "upsert" if kind == "iceberg-upsert" else "append"
    columns = {"n": "long", "v": "long"}
    return iceberg.Destination(table=table, catalog=catalog, columns=columns, mode=mode, rows_max=3)


def kill_in_commit(number: int) -> None:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog

    catalog: Any = RestCatalog if "REST_CATALOG" in os.environ else SqlCatalog
    commit = catalog.commit_table
    count = 0

    def commit_or_die(self: Any, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, *arguments)

    catalog.commit_table = commit_or_die


async def main(folder: Path, kind: str) -> int:
    pipeline = Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=records(kind)), batch_size=5)],
        destinations=[Destination("d", make_destination(folder, kind))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=10),
    )
    async with await SqliteStore.open(folder / "state") as store:
        state = await Supervisor(pipeline, store).run()
    return 0 if state.status is Status.COMPLETED else 3


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    sys.exit(trio.run(main, Path(sys.argv[1]), sys.argv[2]))
