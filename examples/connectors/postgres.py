"""The rows of a table and every change of them, in another table; transactions stay whole."""

from conduit_connectors import postgres

from conduit_py import Destination, Pipeline, Source

URL = "postgresql://conduit@localhost/shop"

pipeline = Pipeline(
    "orders",
    sources=[Source("orders", postgres.Source(url=URL, slot="orders_copy", tables=["orders"]), atomic=True)],
    destinations=[Destination("copy", postgres.Destination(url=URL, table="orders_copy", mode="upsert"))],
    delivery="exactly_once",
)
