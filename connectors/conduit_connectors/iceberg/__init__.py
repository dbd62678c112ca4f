"""The Iceberg connector: `iceberg.Destination` appends or upserts rows of a table, `iceberg.Source` reads them."""

from conduit_connectors.iceberg.destination import Destination
from conduit_connectors.iceberg.source import Source

__all__ = ["Destination", "Source"]
