"""The Kafka connector: reads topics, alone or in a consumer group, and writes to topics in transactions.

In reading order: `source` with `source_options`, `partition_reader` (a consumer in its own thread, with `task_wake`
and `group_offsets`), `partition_ranges` (for executors of Spark), `topic_watch`, `partition_name` (what a position
says); `destination`, `transactions`; then what both use: `message` and `connection`.
"""

from conduit_connectors.kafka.destination import Destination
from conduit_connectors.kafka.source import Source

__all__ = ["Destination", "Source"]
