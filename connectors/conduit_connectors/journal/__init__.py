"""The journal connector: durable logs that join pipelines, exactly-once from one to the next.

In reading order: `destination`, `source`, `position` (where a reader continues).
"""

from conduit_connectors.journal.destination import Destination
from conduit_connectors.journal.source import Source

__all__ = ["Destination", "Source"]
