"""Named points at which a crash test kills the process. It exists for crash tests only.

With `CONDUIT_KILL_AT=name` in the environment the process kills itself (SIGKILL, so nothing is cleaned
up) when it reaches that point; with `name:nth` when it does so for the nth time. Otherwise reaching a
point does nothing. The environment is read once, when this module is imported. A fork whose environment
differs from its parent's reads it again with `read_environment`.
"""

import itertools
import os
import signal

_name = ""
_nth = 1
# `next` on a count is atomic, so any thread may reach a point.
_reached = itertools.count(1)


def reach(name: str) -> None:
    """Kill this process if `name` is the chosen point and this is the nth time it is reached."""
    if name == _name and next(_reached) == _nth:
        os.kill(os.getpid(), signal.SIGKILL)


def read_environment() -> None:
    """Choose the point that `CONDUIT_KILL_AT` names, and count from 1 again."""
    global _name, _nth, _reached
    kill_at = os.environ.get("CONDUIT_KILL_AT", "")
    name, colon, nth = kill_at.partition(":")
    if colon and not (nth.isdecimal() and int(nth)):
        raise ValueError(f"CONDUIT_KILL_AT is {kill_at!r}: write `name` or `name:nth`, counted from 1")
    _name, _nth, _reached = name, int(nth or 1), itertools.count(1)


read_environment()
