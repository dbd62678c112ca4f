"""The Iceberg connector: `iceberg.Destination` appends or upserts rows of a table, `iceberg.Source` reads them.

In reading order: `destination` with `options`, `commits` (each transaction is visible once), `data_files` (written
before their commit), `columns`, `catalog` (tables, and what errors mean), `source`, `task_files` (for tasks of Spark).
"""

# First, and by its own name: the error for a missing package says what to install.
import pyiceberg  # noqa: F401

from conduit_connectors.iceberg.destination import Destination
from conduit_connectors.iceberg.source import Source

__all__ = ["Destination", "Source"]
