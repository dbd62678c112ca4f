"""Spark: an engine that runs pipelines on its executors, and a data source that offers connectors to Spark.

In reading order: `session` (the Spark of this process), `engine` (one pipeline between driver and executors),
`datasource` (the other way round: `spark.read.format("conduit")`). A server gives such a pipeline a process of its own:
`conduit_py.child`. `DataSource` is imported on first use, because it needs pyspark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_py.spark.datasource.data_source import DataSource

__all__ = ["DataSource"]


def __getattr__(name: str) -> Any:
    if name != "DataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conduit_py.spark.datasource.data_source import DataSource

    return DataSource
