"""Orders counted by minute; the clock lets the last minutes be counted when the orders end."""

from conduit_connectors import clock, file, generator
from conduit_processors import window

from conduit_py import Pipeline

pipeline = Pipeline(
    "orders",
    sources={
        "orders": generator.Source(count=100, fields={"id": "index", "at": "time"}),
        "clock": clock.Source(every_seconds=1),
    },
    processors=[window.Tumbling(time="at", size_seconds=60, clock="clock")],
    destinations={"out": file.Destination(path="minutes.jsonl", format="json")},
    delivery="exactly_once",
)
