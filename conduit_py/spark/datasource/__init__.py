"""Connectors as a data source of Spark, `format("conduit")`: the implementation of conduit_py.spark.DataSource."""
