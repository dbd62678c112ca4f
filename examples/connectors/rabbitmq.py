"""Orders for a queue of RabbitMQ, and its messages, each once, as lines of a file."""

from conduit_connectors import file, generator, rabbitmq

from conduit_py import Pipeline

send = Pipeline(
    "send-orders",
    sources={"made": generator.Source(count=100, fields={"id": "index"})},
    destinations={"queue": rabbitmq.Destination(url="amqp://guest:guest@localhost/%2F", routing_key="orders")},
)
receive = Pipeline(
    "orders",
    sources={"queue": rabbitmq.Source(url="amqp://guest:guest@localhost/%2F", queue="orders", unique_ids=True)},
    destinations={"out": file.Destination(path="orders.jsonl", format="lines")},
    delivery="exactly_once",
)
