"""The spark connector: sources and destinations that Spark reads and writes.

`spark.Source` reads queries, tables, files and streams. `spark.Destination` writes files exactly once, `spark.Jdbc`
rows of a database, and `spark.Sink` appends to whatever else Spark can write to.

In reading order, the source: `source`, `origin` (what is read), `ordered` (by key), `spool` (rows kept on disk),
`stream` (micro-batches), `positions`. The destinations: `buffered_destination` and `row_buffer` (what all share),
`rows` (records as Arrow), `files` with `manifest`, `folder` and `delivered_ids`; `jdbc` with `database` and `changes`;
`sink`.
"""

# First: without PySpark this raises an error that names what to install.
import conduit_py.sdk.spark as _spark  # noqa: F401
from conduit_connectors.spark.files import Destination
from conduit_connectors.spark.jdbc import Jdbc
from conduit_connectors.spark.sink import Sink
from conduit_connectors.spark.source import Source

__all__ = ["Destination", "Jdbc", "Sink", "Source"]
