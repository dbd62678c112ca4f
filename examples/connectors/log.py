"""Records in the log of the process, to see what a pipeline does."""

from conduit_connectors import generator, log

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": generator.Source(count=3, fields={"id": "index"})},
    destinations={"log": log.Destination()},
)
