"""Made-up orders, ten a second, into the log: something to see on the dashboards."""

from conduit_connectors import generator, log

from conduit_py import Pipeline

orders = Pipeline(
    "orders",
    sources={"shop": generator.Source(rate=10, fields={"id": "index", "amount": "float"})},
    destinations={"log": log.Destination()},
)
