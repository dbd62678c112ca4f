"""The Iceberg connector: `iceberg.Destination` appends or upserts rows of a table, `iceberg.Source` reads them."""

# First, and by its own name: the error for a missing package says what to install.
import pyiceberg  # noqa: F401

from conduit_connectors.iceberg.destination import Destination
from conduit_connectors.iceberg.source import Source

__all__ = ["Destination", "Source"]
