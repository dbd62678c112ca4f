"""JSON lines in, one field added, JSON lines out; what cannot be handled is kept as a dead letter."""

from conduit_connectors import file

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor


@processor
def cents(record: Record) -> Record | None:
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record


pipeline = Pipeline(
    "orders",
    sources=[Source("web", file.Source(path="orders.jsonl", format="json"))],
    processors=[cents],
    destinations=[Destination("lake", file.Destination(path="out.jsonl", format="json"))],
    dead_letters=DeadLetters(
        file.Destination(path="dead.jsonl", format="json"), window_size=100, window_nack_threshold=5
    ),
)
