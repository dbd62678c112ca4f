"""The MQTT connector: subscribes to topics with a session that the broker keeps, and publishes with QoS 1.

In reading order: `source`, `destination`, `connection`.
"""

from conduit_connectors.mqtt.destination import Destination
from conduit_connectors.mqtt.source import Source

__all__ = ["Destination", "Source"]
