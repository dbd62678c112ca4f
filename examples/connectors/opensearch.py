"""Orders as documents of an index: each once, under its delivery key."""

from conduit_connectors import generator, opensearch

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"made": generator.Source(count=100, fields={"id": "index", "amount": "float"})},
    destinations={"search": opensearch.Destination(url="http://localhost:9200", index="orders")},
    delivery="exactly_once",
)
