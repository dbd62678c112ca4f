"""Processors that unpack a record from the envelope of another system: `debezium`, `kafka_connect`, `opencdc`.

`envelope` has what they share.
"""

from conduit_processors.unwrap.debezium import Debezium
from conduit_processors.unwrap.kafka_connect import KafkaConnect
from conduit_processors.unwrap.opencdc import OpenCDC

__all__ = ["Debezium", "KafkaConnect", "OpenCDC"]
