"""A leased queue in a SQLite file: for one machine, with any number of processes."""

from conduit_connectors.sqlite_queue.destination import Destination
from conduit_connectors.sqlite_queue.queue import SqliteQueue
from conduit_connectors.sqlite_queue.source import Source

__all__ = ["Destination", "Source", "SqliteQueue"]
