"""The messages of one topic in another: messages and offsets are one transaction of Kafka."""

from conduit_connectors import kafka

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": kafka.Source(servers="localhost:9092", topics=["orders"])},
    destinations={"copy": kafka.Destination(servers="localhost:9092", topic="orders-copy")},
    delivery="exactly_once",
)
