"""The MySQL connector, for MariaDB: reads rows of tables and every change of them, and writes rows of tables.

In reading order, the source: `source` with `source_options`, `log_reader` (events become changes), `snapshot` (tables
as a whole), `changes` (changes become records), `position`. The log: `binlog_stream`, `binlog_events`, `log_cursor`,
`table_map`, `row_values` with `fixed_values` and `charsets`, `logged_statement`. The server: `server_checks`,
`catalog`, `schemas`, `selected_values`, `session`. The destination: `destination`, `database`, `column_types`. Both use
`address`.
"""

from conduit_connectors.mysql.destination import Destination
from conduit_connectors.mysql.source import Source

__all__ = ["Destination", "Source"]
