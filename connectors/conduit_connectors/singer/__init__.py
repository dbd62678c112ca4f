"""The singer connector: any Singer tap as a source. `source`, then `tap_process`, `catalog` and `messages`."""

from conduit_connectors.singer.source import Source, SourceOptions

__all__ = ["Source", "SourceOptions"]
