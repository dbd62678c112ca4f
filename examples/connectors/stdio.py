"""Between other commands: `cat orders.jsonl | conduit-py run pipeline.py | head`."""

from conduit_connectors import stdio

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={"orders": stdio.Source(format="json")},
    destinations={"out": stdio.Destination(format="json")},
)
