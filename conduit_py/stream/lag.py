"""LagWatch: asks a source now and then how much it has still to read."""

import logging

import trio

from conduit_py.sdk.source import Lag
from conduit_py.stream.calls import Calls
from conduit_py.stream.meter import Meter

log = logging.getLogger("conduit_py")

LAG_SECONDS = 5.0


class LagWatch:
    """Keeps the lag of one source in its meter while it runs. Nothing waits for it, and no error of `lag` ends a run.

    A sync `lag` has a thread of its own: one that does not return holds up nothing but the next question.
    """

    def __init__(self, node: str, calls: Calls, meter: Meter) -> None:
        self._node = node
        self._calls = calls
        self._meter = meter
        self._complained = False

    async def run(self) -> None:
        if self._calls.inherited("lag"):
            return
        while True:
            self._meter.lag = await self._ask()
            await trio.sleep(LAG_SECONDS)

    async def _ask(self) -> Lag | None:
        try:
            lag = await self._calls("lag")
        except Exception as error:  # a border: what the source cannot say now, it may say later
            self._complain(f"{type(error).__name__}: {error}", error)
            return None
        if lag is None or isinstance(lag, Lag):
            return lag
        self._complain(f"lag() must return a Lag or None, not {type(lag).__name__}")
        return None

    def _complain(self, why: str, error: Exception | None = None) -> None:
        level = logging.DEBUG if self._complained else logging.WARNING
        log.log(level, "%s does not say how far it is behind: %s", self._node, why, exc_info=self._complained and error)
        self._complained = True
