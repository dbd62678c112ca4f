"""What others send by HTTP as lines of a file. A request is answered 200 when its record is durable, each once."""

from conduit_connectors import file, webhook

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"shop": webhook.Source(listen="127.0.0.1:8081", key_path="id", keep_headers=["X-Event"])},
    destinations={"out": file.Destination(path="orders.jsonl", format="json")},
    delivery="exactly_once",
)
