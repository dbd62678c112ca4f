"""The DuckDB connector: `duckdb.Destination` fills tables of a database file, `duckdb.Source` reads rows by a key.

In reading order: `destination`, `database` (the connection), `column_types` (what columns hold as it is), `source`,
`exact_values` (which values Python holds as they are).
"""

from conduit_connectors.duckdb.destination import Destination
from conduit_connectors.duckdb.source import Source

__all__ = ["Destination", "Source"]
