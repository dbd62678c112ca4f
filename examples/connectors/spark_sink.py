"""Rows of a table of Spark's catalog."""

from conduit_connectors import generator, spark

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={"table": spark.Sink(table="orders")},
)
