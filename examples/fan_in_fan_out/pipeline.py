"""Two sources into one line of processors and on to two destinations; each order is split into its items."""

from conduit_connectors import file

from conduit_py import Destination, Pipeline, Record, Source, processor


@processor
def items(record: Record) -> list[Record]:
    """One record per item: the order counts as handled when all of its items are."""
    order = record.payload["order"]
    return [Record.of({"order": order, "item": item}) for item in record.payload["items"]]


def shop(name: str) -> Source:
    """A source with a processor of its own, so that every record says which shop it is from."""

    def stamp(record: Record) -> Record:
        record.payload["order"] = f"{name}-{record.payload['order']}"
        return record

    return Source(name, file.Source(path=f"{name}.jsonl", format="json"), processors=[stamp])


pipeline = Pipeline(
    "shops",
    sources=[shop("north"), shop("south")],
    processors=[items],
    destinations=[
        Destination("everything", file.Destination(path="everything.jsonl", format="json")),
        Destination(
            "books",
            file.Destination(path="books.jsonl", format="json"),
            when=lambda record: record.payload["item"].startswith("book"),
        ),
    ],
)
