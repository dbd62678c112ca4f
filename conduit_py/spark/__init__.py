"""The second engine: the same pipeline, with its input read and its processors run by the executors of a Spark.

`conduit_py.spark.DataSource` is the other way round: connectors as a format of Spark's. It is imported on first use,
because it needs pyspark.
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
