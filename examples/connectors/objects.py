"""The records of all objects below a prefix, here of a folder; `s3://bucket/orders` works the same."""

from conduit_connectors import file, objects

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": objects.Source(url="export")},
    destinations={"out": file.Destination(path="orders.jsonl", format="json")},
    delivery="exactly_once",
)
