"""Joins on committed state: `join.table` with a table that another source feeds, `join.interval` of two streams.

In reading order: `table`, `interval`.
"""

from conduit_processors.join.interval import Interval
from conduit_processors.join.table import Table

__all__ = ["Interval", "Table"]
