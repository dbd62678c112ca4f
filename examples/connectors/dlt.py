"""The rows of a dlt resource in a database, one for each key; a second run reads what is new."""

from collections.abc import Iterator
from typing import Any

import dlt
from conduit_connectors import dlt as dlt_connector
from conduit_connectors import sqlite

from conduit_py import Pipeline

ORDERS = [{"id": 1, "total": 3}, {"id": 2, "total": 4}]


@dlt.resource(primary_key="id")
def orders(number: Any = dlt.sources.incremental("id", initial_value=0)) -> Iterator[list[dict[str, int]]]:
    yield [order for order in ORDERS if order["id"] >= number.start_value]


pipeline = Pipeline(
    "shop",
    sources={"dlt": dlt_connector.Source(resource=orders)},
    destinations={"rows": sqlite.Destination(path="shop.db", mode="upsert")},
    delivery="exactly_once",
)
