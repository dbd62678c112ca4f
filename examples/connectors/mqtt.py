"""The readings of sensors as lines of a file, and readings made up. The broker keeps what comes while nobody reads."""

from conduit_connectors import file, generator, mqtt

from conduit_py import Pipeline

receive = Pipeline(
    "readings",
    sources={
        "sensors": mqtt.Source(url="mqtt://localhost:1883", topics=["sensors/+/temperature"], client_id="readings")
    },
    destinations={"out": file.Destination(path="readings.jsonl", format="lines")},
)
send = Pipeline(
    "sensor",
    sources={"made": generator.Source(count=100, fields={"n": "index", "celsius": "float"})},
    destinations={"sensor": mqtt.Destination(url="mqtt://localhost:1883", topic="sensors/attic/temperature")},
)
