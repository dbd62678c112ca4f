"""The PostgreSQL connector: reads rows of tables and every change of them, and writes records as rows of tables."""

from conduit_connectors.postgres.destination import Destination
from conduit_connectors.postgres.source import Source

__all__ = ["Destination", "Source"]
