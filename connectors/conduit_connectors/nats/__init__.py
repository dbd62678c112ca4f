"""The NATS connector: reads work from a JetStream stream, shared by the workers of a consumer, and publishes to one.

In reading order: `source`, `destination`, `connection`.
"""

from conduit_connectors.nats.destination import Destination
from conduit_connectors.nats.source import NatsQueue, Source, SourceOptions

__all__ = ["Destination", "NatsQueue", "Source", "SourceOptions"]
