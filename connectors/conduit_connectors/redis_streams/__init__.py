"""The Redis connector: reads work from a stream, shared by the consumers of a group, and appends to streams.

In reading order: `source`, `destination`, `connection`.
"""

from conduit_connectors.redis_streams.destination import Destination
from conduit_connectors.redis_streams.source import RedisQueue, Source, SourceOptions

__all__ = ["Destination", "RedisQueue", "Source", "SourceOptions"]
