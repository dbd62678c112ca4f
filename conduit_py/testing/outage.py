"""Outage: a power cut in a simulation, at any one of the moments in which something became lasting.

What the ends note in their log and what a MortalStore saves are moments. At the chosen one the plug is
pulled: that moment and all later ones never happen, whatever the dying run still does, and the run is
cancelled. The log and the store then hold what a restart would find, so trying every moment in turn
shows that none of them loses a record:

    for moment in itertools.count():
        log, store = Log(), …
        struck = await run_with_outage(pipeline_of(log), log=log, moment=moment)
        await pipeline_of(log)()
        assert log.numbers() …
        if not struck: break
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from conduit_py.errors import StateFailed
from conduit_py.store.memory import MemoryStore
from conduit_py.store.memory_letters import MemoryLetterBox
from conduit_py.store.store import Kind, Row
from conduit_py.testing.log import Log


class Outage:
    """Strikes at the moment with this number, counted from 0, and cancels its scope."""

    def __init__(self, moment: int) -> None:
        self.scope = trio.CancelScope()
        self.struck = False
        self._left = moment

    def spares_moment(self) -> bool:
        """Whether the next moment still happens."""
        if self._left == 0:
            self.struck = True
            self.scope.cancel()
        else:
            self._left -= 1
        return not self.struck


async def run_with_outage(main: Callable[..., Awaitable[Any]], *args: Any, log: Log, moment: int) -> bool:
    """Run `main(*args)` up to this moment of the log; False when it ended before that, by itself."""
    outage = Outage(moment)
    log.outage = outage
    try:
        with outage.scope:
            await main(*args)
    except Exception:
        # What a process would have raised after it was killed is nobody's concern.
        if not outage.struck:
            raise
    finally:
        log.outage = None
    return outage.struck


class MortalStore(MemoryStore):
    """A memory store that stands in the world of a log: its writes are moments of it, with an event each."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.letters = MemoryLetterBox(self._enter, self._enter_letters)

    async def _save(self, rows: list[Row]) -> None:
        await trio.lowlevel.checkpoint()
        what = [f"{row.kind}:{row.node}={row.value.decode()}" for row in rows if row.kind == "position"]
        if self._log.note("store", "save", *(what or [row.kind for row in rows])):
            await super()._save(rows)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await trio.lowlevel.checkpoint()
        if self._log.note("store", "forget", kind):
            await super()._forget(pipeline, kind, node)

    async def _enter_letters(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._log.note("store", "letters"):
            raise StateFailed("the power is cut")

    async def close(self) -> None:
        """Stay open: the next run uses it again."""
        await trio.lowlevel.checkpoint()
