"""Connectors as a data source of Spark: `spark.read.format("conduit")`, the inside of conduit_py.spark.DataSource.

In reading order: `data_source` (DataSource and its batch reader), `settings` (its options, and the connector they
describe), `stream_reader`, `streams` and `offset` (micro-batches), `open_source` (a source in a thread), `writer` (of
batches and streams, and their tasks), `task_output` (records on their way to the driver), `publish` (all rows of a job
or none), `rows` (records as rows and back), `errors`.
"""
