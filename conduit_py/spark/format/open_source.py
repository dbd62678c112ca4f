"""OpenSource: a source that is open in a thread of its own, for it may be async and Spark is not."""

import threading
from typing import Any

import trio

from conduit_py import sdk
from conduit_py.stream.plugin_calls import PluginCaller

CLOSE_SECONDS = 5.0


class OpenSource:
    """Open from the moment it is made until `close`. Whoever makes it is its only user."""

    def __init__(self, source: sdk.Source[Any], opening: str, where: bytes | None, *, created: bool = False) -> None:
        """`opening` is `open`, with a position, or `open_part`, with a part. `created` says that it is the first."""
        self._source = source
        self._opening = (opening, where)
        self._created = created
        self._calls = PluginCaller("source", source)
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="conduit-source", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def call(self, name: str, *args: Any) -> Any:
        return trio.from_thread.run(self._calls, name, *args, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._closing.set, trio_token=self._token)
        # A source whose sync `read` waits for ever and cannot be stopped is left behind: the process ends soon.
        self._thread.join(2 * CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # a border: it is raised where the source is used
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
        """What is to be done once it is open."""

    async def _end(self) -> None:
        """What is to be done before it is torn down."""
