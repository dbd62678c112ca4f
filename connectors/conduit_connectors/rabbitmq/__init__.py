"""The RabbitMQ connector: reads work from a queue, shared by its consumers, and publishes with confirms.

In reading order: `source`, `destination`, `connection`.
"""

from conduit_connectors.rabbitmq.destination import Destination
from conduit_connectors.rabbitmq.source import RabbitQueue, Source, SourceOptions

__all__ = ["Destination", "RabbitQueue", "Source", "SourceOptions"]
