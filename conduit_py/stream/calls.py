"""Calls: how the runtime calls a plugin, whose methods may be sync or async."""

import inspect
from collections.abc import Callable
from typing import Any

from conduit_py.sdk.destination import Destination
from conduit_py.sdk.plugin import Connector, Plugin
from conduit_py.sdk.processor import Processor
from conduit_py.sdk.source import Source
from conduit_py.stream.thread import OwnedThread


class Calls:
    """Awaits a plugin's async methods and runs its sync ones in one thread, which starts when first needed.

    A method that the plugin inherited unchanged does nothing, so calling it costs nothing.
    """

    def __init__(self, node: str, plugin: Plugin[Any]) -> None:
        self._node = node
        self.plugin = plugin
        self._thread: OwnedThread | None = None

    async def __call__(self, name: str, *args: Any) -> Any:
        method = getattr(self.plugin, name)
        if is_async(method):
            return await method(*args)
        if self.inherited(name):
            return None
        return await self.in_thread(method, *args)

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._thread is None:
            self._thread = OwnedThread(self._node)
        return await self._thread.run(call, *args)

    def inherited(self, name: str) -> bool:
        method = getattr(type(self.plugin), name, None)
        return any(method is getattr(base, name, _NONE) for base in (Source, Destination, Processor, Connector))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


_NONE = object()


def is_async(call: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
