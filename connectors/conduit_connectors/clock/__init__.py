"""The clock connector: `clock.Source` gives a record at every tick, for windows, joins and processors with timers."""

from conduit_connectors.clock.source import Source

__all__ = ["Source"]
