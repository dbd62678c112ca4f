"""Calls into plugins: their methods may be sync or async, block, and raise anything."""

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import ContractBroken, NodeFailed, RunError
from conduit_py.owned_thread import OwnedThread
from conduit_py.sdk.destination import Answer, DestinationConnector, refusal_text
from conduit_py.sdk.plugin import Connector, Plugin
from conduit_py.sdk.processor import Processor
from conduit_py.sdk.source import SourceConnector

SLOW_SECONDS = 0.05
"""A sync call that takes longer than this in the event loop would hold up every other task."""
SLOW_CALLS_MAX = 3


class PluginCaller:
    """Awaits a plugin's async methods and runs its sync ones in one thread, which starts when first needed.

    A method that the plugin inherited unchanged does nothing, so calling it costs nothing. A plugin
    that does not say whether it blocks has its `read` and `write` called right here until they
    prove slow: a change of threads costs more than reading a few hundred records from a file.
    """

    def __init__(self, node: str, plugin: Plugin[Any]) -> None:
        self.plugin = plugin
        self._node = node
        self._thread: OwnedThread | None = None
        self._slow_calls = 0
        self._ways: dict[str, Callable[..., Awaitable[Any]]] = {}

    async def __call__(self, name: str, *args: Any) -> Any:
        way = self._ways.get(name)
        if way is None:
            way = self._ways[name] = self._way(name)
        return await way(*args)

    def _way(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.plugin, name)
        if is_async(method):
            return method  # type: ignore[no-any-return]
        if self.inherits(name):
            return _nothing
        if self.plugin.blocking is False:
            return lambda *args: self._here(method, *args)
        if name in ("read", "write") and self.plugin.blocking is None:
            return lambda *args: self._here_while_quick(method, *args)
        return lambda *args: self.in_thread(method, *args, final=name in _FINAL)

    async def _here(self, method: Callable[..., Any], *args: Any) -> Any:
        # The others get their turn, or a source would fill a whole batch before its first record sets out.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return method(*args)

    async def _here_while_quick(self, method: Callable[..., Any], *args: Any) -> Any:
        if self._slow_calls == SLOW_CALLS_MAX:
            return await self.in_thread(method, *args)
        await trio.lowlevel.cancel_shielded_checkpoint()
        started = time.perf_counter()
        try:
            return method(*args)
        finally:
            # On a busy machine any call may be slow once; one that blocks is slow again and again.
            self._slow_calls = self._slow_calls + 1 if time.perf_counter() - started > SLOW_SECONDS else 0

    async def in_thread(self, call: Callable[..., Any], *args: Any, final: bool = False) -> Any:
        if self._thread is None:
            self._thread = OwnedThread(self._node)
        return await self._thread.run(call, *args, final=final)

    def inherits(self, name: str) -> bool:
        method = getattr(type(self.plugin), name, None)
        return any(
            method is getattr(base, name, _NONE)
            for base in (SourceConnector, DestinationConnector, Processor, Connector)
        )

    @property
    def busy(self) -> bool:
        """Whether a call is under way in the thread, be it that nobody waits for it any more."""
        return self._thread is not None and self._thread.busy

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    async def join(self) -> None:
        """Once closed: wait until no call is under way any more."""
        if self._thread is not None:
            await self._thread.join()


_NONE = object()
_FINAL = ("teardown", "close")


async def _nothing(*args: Any) -> None:
    """What an inherited method does."""


def is_async(call: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


@contextmanager
def plugin_errors(node: str, doing: str) -> Iterator[None]:
    """Translate what a plugin raises: errors it classified keep their class, all others become NodeFailed."""
    try:
        yield
    except RunError as error:
        error.node = error.node or node
        raise
    except Exception as error:
        raise NodeFailed(node, doing, error) from error


def shallow_copy(batch: Batch) -> Batch:
    """The batch with a list of its own: a plugin that reorders it or takes records out must not do so to ours."""
    return Batch(batch.span, list(batch.records), batch.sequences, batch.pieces)


def check_refusals(node: str, said: Any, count: int) -> dict[int, str]:
    """What `write` returned about a batch of `count` records, as index → reason, lowest index first."""
    if not said:
        return {}
    if not isinstance(said, Mapping):
        rule = f"write() must return None or a mapping of index to reason, not {type(said).__name__}"
        raise ContractBroken(node, rule)
    for index in said:
        if not isinstance(index, int) or not 0 <= index < count:
            raise ContractBroken(node, f"write() refused record {index!r} of a batch of {count}")
    return {index: refusal_text(said[index]) for index in sorted(said)}


async def next_answers(node: str, calls: PluginCaller) -> Sequence[Answer | Batch]:
    """Wait for the next answers of a destination that gives them later."""
    if calls.inherits("answers"):
        raise ContractBroken(node, "says AckMode.LATER but has no answers()")
    with plugin_errors(node, "answers"):
        answers = await calls("answers")
    if not isinstance(answers, Sequence):
        raise ContractBroken(node, f"answers() must return a sequence of Answer, not {type(answers).__name__}")
    for answer in answers:
        if not isinstance(answer, Answer | Batch):
            raise ContractBroken(node, f"answers() must give Answer or Batch, not {type(answer).__name__}")
    if not answers:
        # One that polls without ever waiting would starve everybody else.
        await trio.lowlevel.checkpoint()
    return answers


async def answers_about(node: str, calls: PluginCaller, batch: Batch, refused: Mapping[int, str]) -> dict[int, str]:
    """Wait until all of a batch is answered for but what `write` has refused; which are refused now, and why."""
    waiting = {message: index for index, message in enumerate(batch.ids) if index not in refused}
    later: dict[int, str] = {}
    while waiting:
        for answer in await next_answers(node, calls):
            messages = answer.ids if isinstance(answer, Batch) else [answer.message]
            found = [waiting.pop(each) for each in messages if isinstance(each, MessageId) and each in waiting]
            if not found:
                raise unexpected_answer(node, messages[0] if messages else "a batch without messages")
            if isinstance(answer, Answer) and answer.refused is not None:
                later[found[0]] = answer.refused
    return later


def unexpected_answer(node: str, message: object) -> ContractBroken:
    return ContractBroken(node, f"answered for {message}, which is not waiting for an answer")
