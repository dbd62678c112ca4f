"""The driver of a kill run: a file of numbers, filtered, split and refused, exactly once into Parquet, Delta, Iceberg
and PostgreSQL: what executors prepare, and what they stage themselves.

`soak_driver.py FOLDER MASTER URL PART_SIZE` runs the pipeline on that cluster into the database at URL. Whenever more
is acked it prints how much; it exits with 0 when everything is done, and with 3 when it has failed.
"""

import hashlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

# Where a test has its support: a process of its own gets nothing from pytest.
sys.path.append(str(Path(__file__).parents[1] / "support"))

import trio
from conduit_connectors import delta, file, iceberg, parquet, postgres, spark
from lake_tables import catalog_of
from spark_cluster import DEEP_STACK, SMALL_CONF

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, TransactionLimits, processor
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.store import open_store

FAILED = 3
LOOK_SECONDS = 0.01
CONF = {
    **SMALL_CONF,
    "spark.driver.extraJavaOptions": DEEP_STACK,
    "spark.executor.extraJavaOptions": DEEP_STACK,
}


def line(number: int) -> str:
    """One line of the input."""
    return json.dumps({"id": number, "user": f"user-{number % 977}", "amount": number * 7919 % 100_000 / 100}) + "\n"


def is_filtered(number: int) -> bool:
    return number % 10 == 0


def is_refused(number: int) -> bool:
    return number % 101 == 7


def parts(number: int) -> list[str]:
    """What a record is split into."""
    return ["a", "b"] if number % 7 == 3 else ["a"]


def checksum(number: int, part: str, user: str, amount: float) -> str:
    return hashlib.blake2b(f"{number}|{part}|{user}|{amount}".encode(), digest_size=8).hexdigest()


@processor
def filtered(record: Record) -> Record | None:
    return None if is_filtered(record.payload["id"]) else record


@processor
def refused(record: Record) -> Record:
    if is_refused(record.payload["id"]):
        raise ValueError(f"{record.payload['id']} is not wanted")
    return record


@processor
def split(record: Record) -> list[Record]:
    order: Any = record.payload.after
    number, user, amount = order["id"], order["user"], order["amount"]
    return [
        Record.of({"id": number, "part": part, "digest": checksum(number, part, user, amount)})
        for part in parts(number)
    ]


def pipeline(folder: Path, url: str) -> Pipeline:
    columns = "id BIGINT, part STRING, digest STRING"
    typed = {"id": "int64", "part": "string", "digest": "string"}
    lake_columns = {"id": "long", "part": "string", "digest": "string"}
    return Pipeline(
        "soak",
        sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
        processors=[filtered, refused, split],
        destinations=[
            Destination("lake", spark.Destination(path=str(folder / "lake"), columns=columns)),
            Destination("dataset", parquet.Destination(path=folder / "dataset", columns=typed)),
            Destination(
                "delta", delta.Destination(path=str(folder / "delta"), columns=lake_columns, partition_by=["part"])
            ),
            Destination(
                "iceberg",
                iceberg.Destination(table="db.t", catalog=catalog_of(folder / "iceberg"), columns=lake_columns),
            ),
            Destination("rows", postgres.Destination(url=url, table="numbers")),
        ],
        dead_letters=DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json")),
        delivery="exactly_once",
        transaction=TransactionLimits(max_seconds=0.2),
    )


async def tell(supervisor: SparkSupervisor) -> None:
    """Say how much is acked whenever it has become more."""
    acked = 0
    while True:
        if (now := supervisor.progress().acked) > acked:
            acked = now
            print(acked, flush=True)
        await trio.sleep(LOOK_SECONDS)


async def main(folder: Path, master: str, url: str, part_size: int) -> int:
    options = SparkOptions(master=master, conf=CONF, start_seconds=300)
    async with await open_store(folder / "state") as store, trio.open_nursery() as nursery:
        supervisor = SparkSupervisor(pipeline(folder, url), store, spark=options, part_size=part_size)
        nursery.start_soon(tell, supervisor)
        ended = await supervisor.run()
        nursery.cancel_scope.cancel()
    if ended.status is not Status.COMPLETED:
        print(ended.error, file=sys.stderr)
    return 0 if ended.status is Status.COMPLETED else FAILED


if __name__ == "__main__":
    sys.exit(trio.run(partial(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))))
