"""The rows of a table of MariaDB and every change of them, in another table."""

from conduit_connectors import mysql

from conduit_py import Pipeline

URL = "mysql://conduit@localhost/shop"

pipeline = Pipeline(
    "orders",
    sources={"orders": mysql.Source(url=URL, server_id=4711, tables=["orders"])},
    destinations={"copy": mysql.Destination(url=URL, table="orders_copy", mode="upsert")},
    delivery="exactly_once",
)
