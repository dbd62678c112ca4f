"""IgnoredFields: which fields of records a destination leaves out because their table has no column for them."""

import logging

_logger = logging.getLogger(__name__)

_NAMED_MAX = 1000
"""How many fields are named in the log. Records may bring any number of names."""


class IgnoredFields:
    """Names each field once in the log, and counts the values. `report` logs how many there were."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()
        self._count = 0

    def add(self, table: str, name: str) -> None:
        """Count one value."""
        self._count += 1
        if (table, name) not in self._named and len(self._named) < _NAMED_MAX:
            self._named.add((table, name))
            _logger.warning("the table %r has no column %r: the field is ignored from now on", table, name)

    def report(self) -> None:
        """Log how many values were left out since the last report, if any."""
        if self._count:
            _logger.warning("ignored %d values of fields that have no column", self._count)
        self._count = 0
