"""Rows of a database that has a JDBC driver, each batch whole or not at all."""

from conduit_connectors import generator, spark

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={"table": spark.Jdbc(url="jdbc:postgresql://localhost/shop?user=conduit", table="orders")},
    delivery="exactly_once",
)
