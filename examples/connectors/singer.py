"""The rows of a Singer tap in a database, a table for each of its streams; a second run reads what is new."""

from conduit_connectors import singer, sqlite

from conduit_py import Pipeline

pipeline = Pipeline(
    "shop",
    sources={
        "tap": singer.Source(
            command=["uvx", "--from", "tap-shop", "tap-shop"],
            config={"rows": "rows.json"},
            secret_config={"token": "s3cret"},
            select=["orders"],
        )
    },
    destinations={"rows": sqlite.Destination(path="shop.db", mode="upsert")},
    delivery="exactly_once",
)
