"""Processors that unpack a record from the envelope another system put around it."""

from conduit_processors.unwrap.debezium import Debezium
from conduit_processors.unwrap.kafka_connect import KafkaConnect
from conduit_processors.unwrap.opencdc import OpenCDC

__all__ = ["Debezium", "KafkaConnect", "OpenCDC"]
