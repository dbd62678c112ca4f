"""The PostgreSQL connector: reads rows of tables and every change of them, and writes records as rows of tables.

In reading order, the source: `source` with `source_options`, `wal_reader` (messages become changes), `snapshot` with
`snapshot_request` (tables as a whole), `changes` (changes become records), `position`. The log: `replication`,
`pgoutput`, `row_decoder`, `column_values`. The server: `publication`, `catalog`, `schemas`, `session`. The destination:
`destination`, `database`, `copy_in`, `staging_tables` (for tasks of Spark).
"""

from conduit_connectors.postgres.destination import Destination
from conduit_connectors.postgres.source import Source

__all__ = ["Destination", "Source"]
