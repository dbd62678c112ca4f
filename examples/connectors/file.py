"""The lines of one file in another, exactly once, however often the process is killed."""

from conduit_connectors import file

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": file.Source(path="orders.jsonl", format="json")},
    destinations={"copy": file.Destination(path="copy.jsonl", format="json")},
    delivery="exactly_once",
)
