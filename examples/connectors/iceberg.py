"""An Iceberg table with one row for each order, and its rows as lines of a file."""

from conduit_connectors import file, generator, iceberg

from conduit_py import Pipeline

CATALOG = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "lake"}

load = Pipeline(
    "load",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={
        "lake": iceberg.Destination(
            table="shop.orders",
            catalog=CATALOG,
            columns={"id": "long", "amount": "double"},
            mode="upsert",
            key=["id"],
        )
    },
    delivery="exactly_once",
)

copy = Pipeline(
    "copy",
    sources={"lake": iceberg.Source(table="shop.orders", catalog=CATALOG)},
    destinations={"lines": file.Destination(path="orders.jsonl", format="json")},
    delivery="exactly_once",
)
