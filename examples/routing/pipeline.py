"""A graph of its own shape: `after` says which node follows which, branches never see each other's changes."""

from conduit_connectors import file

from conduit_py import Destination, Pipeline, Processor, Record, Source


def parse(record: Record) -> Record:
    text = record.payload.after
    assert isinstance(text, bytes)
    level, _, message = text.decode().partition(" ")
    record.payload.after = {"level": level, "message": message}
    return record


def shout(record: Record) -> Record:
    record.payload["message"] = record.payload["message"].upper()
    return record


pipeline = Pipeline(
    "logs",
    sources=[Source("app", file.Source(path="app.log", format="lines"))],
    processors=[
        Processor("parse", parse),
        Processor("shout", shout, after="parse", when=lambda record: record.payload["level"] == "ERROR"),
    ],
    destinations=[
        Destination("archive", file.Destination(path="archive.jsonl", format="json"), after="parse"),
        Destination(
            "alerts",
            file.Destination(path="alerts.jsonl", format="json"),
            after="shout",
            when=lambda record: record.payload["level"] != "INFO",
        ),
    ],
)
