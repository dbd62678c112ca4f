"""The HTTP connector: polls APIs and sends records to them.

Read in this order: `source` with `source_options`, `paging` (where the reading is) and `page` (the records in an
answer), `destination` with `url_template`, then what both use: `session` with `connection_options`, `client`, `guard`,
`credentials`, `pacing`, `json_path`.
"""

from conduit_connectors.http.destination import Destination
from conduit_connectors.http.source import Source

__all__ = ["Destination", "Source"]
