"""`filter` drops records."""

from conduit_py.sdk import Options, Processor, Record


class Filter(Processor[Options]):
    """Drops every record it sees; `Processor(id, Filter(), when=…)` chooses which."""

    blocking = False

    def process(self, record: Record) -> None:
        """Nothing goes on; the record counts as handled."""
