"""Orders for an SQS queue, and its messages as lines of a file. Several such readers share the work."""

from conduit_connectors import file, generator, sqs

from conduit_py import Pipeline

send = Pipeline(
    "send-orders",
    sources={"made": generator.Source(count=100, fields={"id": "index"})},
    destinations={"orders": sqs.Destination(url="https://sqs.eu-west-1.amazonaws.com/123456789012/orders")},
)
receive = Pipeline(
    "orders",
    sources={"orders": sqs.Source(url="https://sqs.eu-west-1.amazonaws.com/123456789012/orders")},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
)
