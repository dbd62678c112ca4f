"""The spark connector: Spark reads what `spark.Source` gives and writes what a destination is given.

`spark.Destination` writes files exactly once, `spark.Jdbc` rows of a database, and `spark.Sink` appends to
whatever else Spark can write to.
"""

# First: without PySpark this raises an error that names what to install.
import conduit_py.sdk.spark as _spark  # noqa: F401
from conduit_connectors.spark.files import Destination
from conduit_connectors.spark.jdbc import Jdbc
from conduit_connectors.spark.sink import Sink
from conduit_connectors.spark.source import Source

__all__ = ["Destination", "Jdbc", "Sink", "Source"]
