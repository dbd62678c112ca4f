"""The MySQL connector, for MariaDB: reads rows of tables and every change of them, and writes rows of tables."""

from conduit_connectors.mysql.destination import Destination
from conduit_connectors.mysql.source import Source

__all__ = ["Destination", "Source"]
