"""The HTTP connector: polls APIs and sends records to them.

Read in this order: `source` with `paging`, `destination` with `url_template`, then what both use: `client`, `guard`,
`credentials`, `pacing`, `json_path`.
"""

from conduit_connectors.http.destination import Destination
from conduit_connectors.http.source import Source

__all__ = ["Destination", "Source"]
