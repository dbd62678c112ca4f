"""The DuckDB connector: `duckdb.Destination` fills tables of a database file, `duckdb.Source` reads rows by a key."""

from conduit_connectors.duckdb.destination import Destination
from conduit_connectors.duckdb.source import Source

__all__ = ["Destination", "Source"]
