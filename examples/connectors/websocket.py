"""The messages of a WebSocket server in a journal, from which other pipelines read them exactly once."""

from conduit_connectors import journal, websocket

from conduit_py import Pipeline

pipeline = Pipeline(
    "trades",
    sources={"feed": websocket.Source(url="ws://localhost:8765/trades", send=['{"subscribe": "trades"}'])},
    destinations={"log": journal.Destination(path="trades")},
)
