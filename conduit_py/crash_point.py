"""Named points at which a crash test kills the process. It exists for crash tests only.

With `CONDUIT_KILL_AT=name` in the environment the process kills itself (SIGKILL, so nothing is cleaned
up) when it reaches that point; with `name:nth` when it does so for the nth time. Otherwise reaching a
point does nothing. The environment is read once, when this module is imported.
"""

import itertools
import os
import signal

_KILL_AT = os.environ.get("CONDUIT_KILL_AT")

if not _KILL_AT:

    def reach(name: str) -> None:
        """Do nothing: no crash test runs."""

else:
    _NAME, _colon, _nth = _KILL_AT.partition(":")
    if _colon and not (_nth.isdecimal() and int(_nth)):
        raise ValueError(f"CONDUIT_KILL_AT is {_KILL_AT!r}: write `name` or `name:nth`, counted from 1")
    _NTH = int(_nth or 1)
    # `next` on a count is atomic, so any thread may reach a point.
    _REACHED = itertools.count(1)

    def reach(name: str) -> None:
        """Kill this process if `name` is the chosen point and this is the nth time it is reached."""
        if name == _NAME and next(_REACHED) == _NTH:
            os.kill(os.getpid(), signal.SIGKILL)
