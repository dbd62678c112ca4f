"""Orders for a Redis stream, each once, and its entries as lines of a file. Several such readers share the work."""

from conduit_connectors import file, generator, redis_streams

from conduit_py import Pipeline

send = Pipeline(
    "send-orders",
    sources={"made": generator.Source(count=100, fields={"id": "index"})},
    destinations={"orders": redis_streams.Destination(url="redis://localhost:6379/0", stream="orders")},
    delivery="exactly_once",
)
receive = Pipeline(
    "orders",
    sources={"orders": redis_streams.Source(url="redis://localhost:6379/0", stream="orders", group="lake")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
