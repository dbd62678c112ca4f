"""The HTTP API of a fleet of pipelines, and the page at `/`.

A request passes `http_connection.py` (HTTP/1.1), `limits.py` (connections, body), `access.py` (host, origin, token) and
`errors.py` (every error becomes an answer), then a route: `pipelines.py`, `dead_letters.py`, `taps.py`,
`live.py`, `monitoring.py`, `hooks.py` (requests for sources) or `web.py`. Routes work on a `Service` (`service.py`),
which also removes secrets from texts, and answer with what is in `views.py` and `dead_letter_views.py`. `serve.py` puts
them together, on a socket.
"""
