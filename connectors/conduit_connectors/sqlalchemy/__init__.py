"""The SQLAlchemy connector: reads rows by a column that grows, and writes rows, in any database with a dialect.

In reading order: `source`, `destination`, `any_database` and `known_databases` (how it writes), `engine`.
"""

# First, and by its own name: the error for a missing package says what to install.
import sqlalchemy  # noqa: F401

from conduit_connectors.sqlalchemy.destination import Destination
from conduit_connectors.sqlalchemy.source import Source

__all__ = ["Destination", "Source"]
