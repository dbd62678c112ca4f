"""The entries of a Redis stream as lines of a file. Several such processes share the work."""

from conduit_connectors import file, redis_streams

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": redis_streams.Source(url="redis://localhost:6379/0", stream="orders", group="lake")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
