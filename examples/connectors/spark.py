"""The rows of a query as files, each batch visible as a whole."""

from conduit_connectors import spark

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": spark.Source(query="SELECT id, id * 2 AS amount FROM range(100)", stage="stage")},
    destinations={"lake": spark.Destination(path="lake/orders")},
    delivery="exactly_once",
)
