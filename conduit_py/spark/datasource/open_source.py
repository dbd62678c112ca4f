"""OpenSource: a source open in a thread of its own, because it may be async and Spark is not."""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import trio

from conduit_py import sdk
from conduit_py.sdk.source import EndOfSource
from conduit_py.spark.engine.read_ahead import ReadAhead, ReadRecord
from conduit_py.stream.plugin_calls import PluginCaller, is_async

CLOSE_SECONDS = 5.0


class OpenSource:
    """Open from construction until `close`. It has one user, the thread that made it."""

    def __init__(
        self, source: sdk.SourceConnector[Any], opening: str, where: bytes | None, *, created: bool = False
    ) -> None:
        """`opening` is `open`, with a position, or `open_part`, with a part. `created` says that it is the first."""
        self._source = source
        self._opening = (opening, where)
        self._created = created
        self._calls = PluginCaller("source", source)
        self._opened = threading.Event()
        self._error: BaseException | None = None
        # Not an OwnedThread, which runs sync calls for a task of trio. Here a sync caller needs a run of trio.
        self._thread = threading.Thread(target=self._run, name="conduit-source", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def call(self, name: str, *args: Any) -> Any:
        return trio.from_thread.run(self._calls, name, *args, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._closing.set, trio_token=self._token)
        # A source whose sync `read` never returns and cannot be stopped is abandoned: the process ends soon.
        self._thread.join(2 * CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # plugin boundary: it is raised where the source is used
            self._error = error
        finally:
            self._opened.set()

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._closing = trio.Event()
        try:
            if self._created:
                await self._calls("on_created")
            await self._calls(*self._opening)
            await self._begin()
            self._opened.set()
            await self._closing.wait()
            await self._end()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await self._calls("teardown")
            self._calls.close()

    async def _begin(self) -> None:
        """Called once it is open."""

    async def _end(self) -> None:
        """Called before it is torn down."""


AHEAD_MAX = 4096
"""Records that are read and not yet taken, at most."""


class ReadAheadSource(OpenSource):
    """An open source that is read ahead. What was read and not taken when it is closed is read again next time."""

    def __init__(
        self, source: sdk.SourceConnector[Any], opening: str, where: bytes | None, *, created: bool = False
    ) -> None:
        self._acks = PluginCaller("source-ack", source)
        self.hears_acks = not self._acks.inherits("ack")
        """Whether the source implements `ack`."""
        super().__init__(source, opening, where, created=created)

    def take(self, n: int, seconds: float = math.inf) -> list[ReadRecord]:
        """Take at most `n` records; none when there is nothing now, or none came within `seconds`.

        Raises EndOfSource when there never will be more.
        """
        return trio.from_thread.run(self._take, n, seconds, trio_token=self._token)

    def ack(self, positions: Sequence[bytes]) -> None:
        trio.from_thread.run(self._acks, "ack", positions, trio_token=self._token)

    async def _begin(self) -> None:
        self._read_ahead = ReadAhead(self._calls, AHEAD_MAX, records_only=True)
        self._read_ahead.start()

    async def _end(self) -> None:
        # The source itself ends a `read` that waits, if it implements `stop`.
        if is_async(self._source.stop):
            await self._calls("stop")
        elif not self._calls.inherits("stop"):
            # Not in the thread of the source: that one may be inside `read`.
            await trio.to_thread.run_sync(self._source.stop, abandon_on_cancel=True)
        await self._read_ahead.close()
        self._acks.close()

    async def _take(self, n: int, seconds: float) -> list[ReadRecord]:
        with trio.move_on_after(seconds):
            if await self._read_ahead.has_input():
                return (await self._read_ahead.take(n)).records
        return []


def read_all(source: sdk.SourceConnector[Any], part: bytes | None) -> Iterator[ReadRecord]:
    """Everything that a source, or a part of one, has now: until it ends or has nothing more at the moment."""
    feed = ReadAheadSource(source, "open", None) if part is None else ReadAheadSource(source, "open_part", part)
    try:
        while taken := feed.take(AHEAD_MAX // 4):
            yield from taken
    except EndOfSource:
        return
    finally:
        feed.close()
