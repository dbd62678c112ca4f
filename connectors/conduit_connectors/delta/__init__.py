"""The Delta connector: `delta.Destination` appends rows to a Delta Lake table, `delta.Source` reads them.

In reading order: `source`, `destination`, `table` (what both use), `partitions` (what they keep, and how rows are
divided), and for tasks of Spark `task_files` and `adopted_files` (files that were written before their commit).
"""

from conduit_connectors.delta.destination import Destination
from conduit_connectors.delta.source import Source

__all__ = ["Destination", "Source"]
