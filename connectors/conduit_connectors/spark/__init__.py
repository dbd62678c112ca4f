"""The spark connector: Spark reads what `spark.Source` gives and writes what a destination is given.

`spark.Destination` writes files exactly once, `spark.Sink` appends to whatever Spark can write to.
"""

from conduit_connectors.spark import installed as installed
from conduit_connectors.spark.files import Destination
from conduit_connectors.spark.sink import Sink
from conduit_connectors.spark.source import Source

__all__ = ["Destination", "Sink", "Source"]
