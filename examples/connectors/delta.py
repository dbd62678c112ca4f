"""A table of Delta Lake, one commit for each transaction of the pipeline."""

from conduit_connectors import delta, generator

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={"lake": delta.Destination(path="lake/orders", columns={"id": "long", "amount": "double"})},
    delivery="exactly_once",
)
