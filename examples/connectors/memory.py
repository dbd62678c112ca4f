"""Lists as both ends, as a test of a pipeline needs them."""

from conduit_connectors import memory

from conduit_py import Pipeline, Record

orders = [Record.of({"id": number}) for number in range(3)]
arrived: list[Record] = []

pipeline = Pipeline(
    "orders",
    sources={"orders": memory.Source(records=orders)},
    destinations={"out": memory.Destination(into=arrived)},
)
