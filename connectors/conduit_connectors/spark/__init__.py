"""The spark connector: Spark reads what `spark.Source` gives and writes what a destination is given.

`spark.Destination` writes files exactly once, `spark.Jdbc` rows of a database, and `spark.Sink` appends to
whatever else Spark can write to.
"""

from conduit_connectors.spark import installed as installed
from conduit_connectors.spark.files import Destination
from conduit_connectors.spark.jdbc import Jdbc
from conduit_connectors.spark.sink import Sink
from conduit_connectors.spark.source import Source

__all__ = ["Destination", "Jdbc", "Sink", "Source"]
