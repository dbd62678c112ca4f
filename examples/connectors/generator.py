"""A hundred orders, the same ones in every run."""

from conduit_connectors import file, generator

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"}, seed=7)},
    destinations={"out": file.Destination(path="orders.jsonl", format="json")},
)
