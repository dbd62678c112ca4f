"""The orders that changed since the last run, from one database to another, one row for each."""

from conduit_connectors import sqlalchemy

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"shop": sqlalchemy.Source(url="sqlite:///shop.db", table="orders", column="changed_at", key=["id"])},
    destinations={"copy": sqlalchemy.Destination(url="sqlite:///copy.db", table="orders", mode="upsert")},
    delivery="exactly_once",
)
