"""CSV to JSON lines with built-in processors: convert, rename, exclude, and a condition."""

from conduit_connectors import file
from conduit_processors import field, filter

from conduit_py import Destination, Pipeline, Processor, Source

pipeline = Pipeline(
    "csv-cleaning",
    sources=[Source("export", file.Source(path="people.csv", format="csv"))],
    processors=[
        field.Convert(field="age", type="int"),
        Processor("adults-only", filter.Filter(), when=lambda record: record.payload["age"] < 18),
        field.Rename(mapping={"mail": "email"}),
        field.Exclude(fields=["password"]),
    ],
    destinations=[Destination("clean", file.Destination(path="people.jsonl", format="json"))],
)
