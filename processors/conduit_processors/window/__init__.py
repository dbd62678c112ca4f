"""Windows over event time.

In reading order: `window` (what all share), `fixed` (tumbling and sliding), `session`, `event_time` (the watermark),
`aggregate` (what they compute), `timers` (when a key is due).
"""

from conduit_processors.window.aggregate import Aggregate
from conduit_processors.window.event_time import LATE
from conduit_processors.window.fixed import Sliding, Tumbling
from conduit_processors.window.session import Session

__all__ = ["LATE", "Aggregate", "Session", "Sliding", "Tumbling"]
