"""Objects: reads and writes files and objects of S3, GCS, Azure and others; reads those that queue messages announce.

The source: `source` with `source_options`, `reading` (one object after another), `discovery` with `pattern` (finds
them), `object_position`, `removal` (of what was read). `reader` with `location` is for objects that a message
announces. What is in an object: `contents` makes records of it, by `formats`, `json_array`, `avro_file`, and `parquet`
with `parquet_program` and `parquet_chunks`. The destination: `destination` with `dataset_destination`,
`dataset_writer`, `row_formats` (which rows fit) with `row_writers` and `avro_schema`, `partition` (in which folder),
`dataset_place` and `remote_place` (where files wait and become visible), `staged_parts` (of tasks of Spark). `store`
says what a store of objects is; `cloud_store` and `fsspec_store` are such stores.
"""

from conduit_connectors.objects.destination import Destination
from conduit_connectors.objects.reader import Format, ObjectArguments, ObjectOptions, ObjectQueueOptions, ObjectReader
from conduit_connectors.objects.source import Source

__all__ = ["Destination", "Format", "ObjectArguments", "ObjectOptions", "ObjectQueueOptions", "ObjectReader", "Source"]
