"""The demo of parallel writes: executors read, process and write their parts. `make demo-spark` runs it."""

import os

from conduit_connectors import generator, parquet

from conduit_py import Destination, Pipeline, Record, Source, processor


@processor
def stamp(record: Record) -> Record:
    """Amounts in cents, and the process that has done it."""
    order = record.payload
    order.after = {"order": order["id"], "cents": round(order["amount"] * 50_000), "process": os.getpid()}
    return record


pipeline = Pipeline(
    "parallel",
    description="Orders as Parquet files, exactly once: each executor writes its own, the driver commits them",
    sources=[Source("web", generator.Source(count=300_000, seed=7))],
    processors=[stamp],
    destinations=[
        Destination(
            "lake",
            parquet.Destination(path="orders", columns={"order": "int64", "cents": "int64", "process": "int64"}),
        )
    ],
    delivery="exactly_once",
)
