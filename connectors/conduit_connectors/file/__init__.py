"""The file connector: `file.Source` reads one file, `file.Destination` appends to one."""

from conduit_connectors.file.destination import Destination
from conduit_connectors.file.source import Source

__all__ = ["Destination", "Source"]
