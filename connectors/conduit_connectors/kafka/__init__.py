"""The Kafka connector: reads topics, alone or in a consumer group, and writes to topics in transactions."""

from conduit_connectors.kafka.destination import Destination
from conduit_connectors.kafka.source import Source

__all__ = ["Destination", "Source"]
