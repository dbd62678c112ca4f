"""Connectors as a format of Spark's, `format("conduit")`: what stands behind conduit_py.spark.DataSource."""
