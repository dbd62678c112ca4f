"""The demo: two sources, processors, two destinations, dead letters. `make demo` runs it."""

from conduit_connectors import file, generator

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Source, processor


def shop(record: Record) -> Record:
    """The web shop is generated; its amounts are fractions, its customers are numbers."""
    order = record.payload
    order.after = {"shop": "web", "order": order["id"], "amount": round(order["amount"] * 500, 2)}
    return record


def till(record: Record) -> Record:
    """The till writes CSV, where everything is text; a price that is no number is refused."""
    order = record.payload
    order.after = {"shop": "till", "order": int(order["receipt"]), "amount": float(order["price"])}
    return record


@processor
def cents(record: Record) -> Record | None:
    """Amounts in cents; free samples are not orders."""
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record if record.payload["cents"] else None


def check_digit(record: Record) -> Record:
    """Something slow enough to be worth four workers; the order of records is kept."""
    record.payload["check"] = record.payload["order"] * 7 % 97
    return record


pipeline = Pipeline(
    "demo",
    description="Orders of a web shop and of a till, into one lake and a file of large orders",
    sources=[
        Source("web", generator.Source(count=60_000, rate=20_000, seed=7), processors=[shop]),
        Source("till", file.Source(path="till.csv", format="csv"), processors=[till]),
    ],
    processors=[cents, Processor("check-digit", check_digit, workers=4)],
    destinations=[
        Destination("lake", file.Destination(path="lake.jsonl", format="json")),
        Destination(
            "large-orders",
            file.Destination(path="large-orders.jsonl", format="json"),
            when=lambda record: record.payload["cents"] > 49_000,
        ),
    ],
    dead_letters=DeadLetters(
        file.Destination(path="dead-letters.jsonl", format="json"), window_size=1000, window_nack_threshold=50
    ),
)
