"""The rows of one table in another: rows and checkpoint are one transaction."""

from conduit_connectors import sqlite

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": sqlite.Source(path="shop.db", table="orders")},
    destinations={"copy": sqlite.Destination(path="copy.db", table="orders")},
    delivery="exactly_once",
)
