"""The messages of an SQS queue as lines of a file. Several such processes share the work."""

from conduit_connectors import file, sqs

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": sqs.Source(url="https://sqs.eu-west-1.amazonaws.com/123456789012/orders")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
