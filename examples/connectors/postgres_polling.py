"""New rows of a table, without replication."""

from conduit_connectors import file, postgres_polling

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={
        "orders": postgres_polling.Source(
            url="postgresql://conduit@localhost/shop", table="orders", column="id", poll_seconds=1
        )
    },
    destinations={"out": file.Destination(path="orders.jsonl", format="json")},
)
