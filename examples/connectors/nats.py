"""Orders for a JetStream stream, and its messages as lines of a file. Several such readers share the work."""

from conduit_connectors import file, generator, nats

from conduit_py import Pipeline

send = Pipeline(
    "send-orders",
    sources={"made": generator.Source(count=100, fields={"id": "index"})},
    destinations={"orders": nats.Destination(url="nats://localhost:4222", stream="orders", subject="orders")},
)
receive = Pipeline(
    "orders",
    sources={"orders": nats.Source(url="nats://localhost:4222", stream="orders", group="lake")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
