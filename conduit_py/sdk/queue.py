"""What connectors of leased queues import: a queue that they implement, and the source that does everything else."""

from conduit_py.queue.leased_queue import LeasedQueue, LeaseTerms, QueueArguments, QueueDelivery, QueueOptions
from conduit_py.queue.message_body import ObjectOpener, ObjectRecord
from conduit_py.queue.source import QueueSource

__all__ = [
    "LeaseTerms",
    "LeasedQueue",
    "ObjectOpener",
    "ObjectRecord",
    "QueueArguments",
    "QueueDelivery",
    "QueueOptions",
    "QueueSource",
]
