"""The Delta connector: `delta.Destination` appends rows to a Delta Lake table, `delta.Source` reads them."""

from conduit_connectors.delta.destination import Destination
from conduit_connectors.delta.source import Source

__all__ = ["Destination", "Source"]
