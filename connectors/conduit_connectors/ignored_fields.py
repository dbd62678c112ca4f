"""IgnoredFields: which fields of records a destination leaves out because their table has no column for them."""

import logging
from collections.abc import Sequence

from conduit_py.sdk import Batch, DriftCount

_logger = logging.getLogger(__name__)

NAMED_MAX = 1000
"""How many fields or tables are named in the log. Records may bring any number of names."""


class IgnoredFields:
    """Names each field once in the log, and counts the values. `report` logs how many there were."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()
        self._reported = 0
        self.drift = DriftCount()

    def add(self, table: str, name: str) -> None:
        """Count one value."""
        self.drift.count += 1
        if (table, name) not in self._named and len(self._named) < NAMED_MAX:
            self._named.add((table, name))
            _logger.warning("the table %r has no column %r: the field is ignored from now on", table, name)

    def count(self, batch: Batch, columns: Sequence[str], table: str) -> None:
        """Count the values of a batch that have no column."""
        known = set(columns)
        if batch.table is not None and known.issuperset(batch.table.column_names):
            return
        for row in batch.payloads:
            if isinstance(row, dict) and not known.issuperset(row):
                for name, value in row.items():
                    if name not in known and value is not None:
                        self.add(table, name)

    def report(self) -> None:
        """Log how many values were left out since the last report, if any."""
        if count := self.drift.count - self._reported:
            _logger.warning("ignored %d values of fields that have no column", count)
        self._reported = self.drift.count
