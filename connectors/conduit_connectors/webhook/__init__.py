"""The webhook connector: takes records that HTTP clients send.

Read in this order: `source` with `source_options`, `delivered_keys` (what was there before), `signature`, `listener`
(a port of its own).
"""

from conduit_connectors.webhook.source import Source

__all__ = ["Source"]
