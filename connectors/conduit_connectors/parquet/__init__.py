"""The Parquet connector: `parquet.Source` reads files, `parquet.Destination` fills a folder with them.

In reading order: `source`, `destination`, `columns` (of the files of a folder).
"""

from conduit_connectors.parquet.destination import Destination
from conduit_connectors.parquet.source import Source

__all__ = ["Destination", "Source"]
