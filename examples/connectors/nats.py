"""The messages of a JetStream stream as lines of a file. Several such processes share the work."""

from conduit_connectors import file, nats

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": nats.Source(url="nats://localhost:4222", stream="orders", group="lake")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
