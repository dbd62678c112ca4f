"""Two pipelines joined by a journal, exactly once from the first to the last."""

from conduit_connectors import file, generator, journal

from conduit_py import Pipeline

produce = Pipeline(
    "produce",
    sources={"orders": generator.Source(count=100, fields={"id": "index"})},
    destinations={"journal": journal.Destination(path="orders.journal")},
    delivery="exactly_once",
)
consume = Pipeline(
    "consume",
    sources={"journal": journal.Source(path="orders.journal")},
    destinations={"out": file.Destination(path="orders.jsonl", format="json")},
    delivery="exactly_once",
)
