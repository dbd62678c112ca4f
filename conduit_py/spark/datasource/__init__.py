"""Connectors as a data source of Spark: `spark.read.format("conduit")`, the inside of conduit_py.spark.DataSource.

In reading order: `data_source` (DataSource and its readers, of batches and of streams), `settings` (its options, and
the connector they describe), `streams` (micro-batches and their offsets), `open_source` (a source in a thread),
`writer` (of batches and streams, and their tasks), `publish` (from tasks to the driver: all rows of a job or none),
`rows` (records as rows and back).
"""
