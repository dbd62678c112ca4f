"""Feed: an open source that is read ahead of whoever takes its records."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import trio

from conduit_py import sdk
from conduit_py.sdk.source import EndOfSource
from conduit_py.spark.format.open_source import OpenSource
from conduit_py.spark.pump import Drawn, Pump
from conduit_py.stream.plugin_calls import PluginCaller, is_async

AHEAD_MAX = 4096
"""Records that are read and not yet taken."""


class Feed(OpenSource):
    """What was read and not taken when it is closed is read again by whoever opens the source next."""

    def __init__(self, source: sdk.Source[Any], opening: str, where: bytes | None, *, created: bool = False) -> None:
        self._acks = PluginCaller("source-ack", source)
        self.hears_acks = not self._acks.inherited("ack")
        """Whether the source wants to know what is done."""
        super().__init__(source, opening, where, created=created)

    def take(self, n: int, seconds: float = math.inf) -> list[Drawn]:
        """At most `n` records; none when there is nothing now, be it that none came for so many seconds.

        Raises EndOfSource when there never will be more.
        """
        return trio.from_thread.run(self._take, n, seconds, trio_token=self._token)

    def ack(self, positions: Sequence[bytes]) -> None:
        trio.from_thread.run(self._acks, "ack", positions, trio_token=self._token)

    async def _begin(self) -> None:
        self._pump = Pump(self._calls, AHEAD_MAX)
        self._pump.start()

    async def _end(self) -> None:
        # A `read` that waits is ended by the source itself, if it knows how to.
        if is_async(self._source.stop):
            await self._calls("stop")
        elif not self._calls.inherited("stop"):
            # Not in the thread of the source: that one may be inside `read`.
            await trio.to_thread.run_sync(self._source.stop, abandon_on_cancel=True)
        await self._pump.close()
        self._acks.close()

    async def _take(self, n: int, seconds: float) -> list[Drawn]:
        with trio.move_on_after(seconds):
            if await self._pump.settled():
                return await self._pump.take(n)
        return []


def drawn(source: sdk.Source[Any], part: bytes | None) -> Iterator[Drawn]:
    """Everything that a source, or a part of one, has now: up to its end, or until it says that there is nothing."""
    feed = Feed(source, "open", None) if part is None else Feed(source, "open_part", part)
    try:
        while taken := feed.take(AHEAD_MAX // 4):
            yield from taken
    except EndOfSource:
        return
    finally:
        feed.close()
