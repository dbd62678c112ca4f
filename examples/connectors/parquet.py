"""Parquet files from one folder in another, as Arrow tables."""

from conduit_connectors import parquet

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": parquet.Source(path="export")},
    destinations={"lake": parquet.Destination(path="lake")},
    delivery="exactly_once",
)
