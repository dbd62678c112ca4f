"""Orders into a DuckDB file, rows and checkpoint in one transaction, and from there into Parquet files."""

from conduit_connectors import duckdb, generator, parquet

from conduit_py import Pipeline

load = Pipeline(
    "load",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={"warehouse": duckdb.Destination(path="warehouse.duckdb", table="orders")},
    delivery="exactly_once",
)

export = Pipeline(
    "export",
    sources={
        "large": duckdb.Source(path="warehouse.duckdb", query="SELECT * FROM orders WHERE id >= 50", key=["id"]),
    },
    destinations={"files": parquet.Destination(path="export")},
    delivery="exactly_once",
)
