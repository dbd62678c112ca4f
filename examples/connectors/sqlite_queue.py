"""Messages of a queue in a file. Several processes may read it and share the work."""

from conduit_connectors import file, generator, sqlite_queue

from conduit_py import Pipeline

send = Pipeline(
    "send",
    sources={"orders": generator.Source(count=100, fields={"id": "index"})},
    destinations={"queue": sqlite_queue.Destination(path="queue.db")},
)
work = Pipeline(
    "work",
    sources={"queue": sqlite_queue.Source(path="queue.db")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
