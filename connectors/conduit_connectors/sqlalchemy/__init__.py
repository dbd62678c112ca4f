"""The SQLAlchemy connector: reads rows by a column that grows, and writes rows, in any database with a dialect."""

from conduit_connectors.sqlalchemy.destination import Destination
from conduit_connectors.sqlalchemy.source import Source

__all__ = ["Destination", "Source"]
