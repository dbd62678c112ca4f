"""Logs: what the runtime and connectors log, on stderr, above the live table when there is one, without secrets."""

import logging
import sys
from typing import TextIO

from conduit_py.config.secrets import redact


def log_to_stderr(*, debug: bool) -> None:
    """Ours from INFO on, others' from WARNING on; with `debug` everything of ours, tracebacks included."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("conduit_py", "conduit_connectors", "conduit_processors"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment: a live table puts itself in its place."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(redact(self.format(record)) + "\n")
            self.stream.flush()
        except Exception:  # the border that logging itself prescribes: a log line never stops the program
            self.handleError(record)
