"""The dlt connector: a resource or a source of dlt as a source. `source`, then `extraction` and `row_values`."""

from conduit_connectors.dlt.source import Source, SourceOptions

__all__ = ["Source", "SourceOptions"]
