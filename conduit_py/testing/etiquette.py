"""Etiquette: the order of calls that the SDK promises to a connector, watched from inside one."""

from collections.abc import Iterator
from contextlib import contextmanager

from conduit_py.testing.log import Log


class Etiquette:
    """Notes a violation for every call that comes too early, too late, or beside one it must not meet.

    `open` comes first and once; `teardown` comes once, last, also after a failed open. Calls of one
    `lane` never overlap; calls of different lanes may.
    """

    def __init__(self, node: str, log: Log) -> None:
        self._node = node
        self._log = log
        self._running: list[tuple[str, str]] = []
        self._opened = False
        self._open_called = False
        self._torn_down = False

    @contextmanager
    def call(self, name: str, *, lane: str = "main") -> Iterator[None]:
        self._watch(name, lane)
        self._running.append((lane, name))
        try:
            yield
        finally:
            self._running.remove((lane, name))
        if name == "open":
            self._opened = True

    def _watch(self, name: str, lane: str) -> None:
        # Nothing at all may run beside teardown, whatever its lane.
        beside = [other for used, other in self._running if used == lane or name == "teardown"]
        if beside:
            self._complain(f"{name} was called while {', '.join(beside)} was running")
        if self._torn_down:
            self._complain(f"{name} was called after teardown")
        if name == "open":
            if self._open_called:
                self._complain("open was called twice")
            self._open_called = True
            self._log.open_ends[self._node] += 1
        elif name == "teardown":
            if not self._open_called:
                self._complain("teardown was called before open")
            elif not self._torn_down:
                self._log.open_ends[self._node] -= 1
            self._torn_down = True
        elif not self._opened:
            self._complain(f"{name} was called before open had returned")

    def _complain(self, what: str) -> None:
        self._log.violation(self._node, what)
