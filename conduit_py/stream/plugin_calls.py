"""Plugin calls: calls plugin methods, which may be sync or async, may block, and may raise anything."""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import trio

from conduit_py.errors import ConduitError, ContractBroken, FleetError, NodeFailed, RunError, describe
from conduit_py.owned_thread import OWN_CLOCK, OwnClock, OwnedThread
from conduit_py.payloads import Payloads
from conduit_py.positions import LazyPositions, Positions
from conduit_py.record import RECORD_TYPES
from conduit_py.sdk.destination import DestinationConnector, refusal_text
from conduit_py.sdk.plugin import Connector, Plugin
from conduit_py.sdk.processor import Processor
from conduit_py.sdk.source import Reading, SourceConnector
from conduit_py.stream.signal import TURN_SECONDS
from conduit_py.user_errors import as_error, as_plugin_error, code_location

log = logging.getLogger("conduit_py")

T = TypeVar("T")

SLOW_SECONDS = 0.05
"""A sync call in the event loop that takes longer than this delays every other task too much."""
SLOW_CALLS_MAX = 3
QUICK_SECONDS = 0.01
"""Well below SLOW_SECONDS: a batch in between is as well off in a thread, and must not move to and fro."""
QUICK_BATCHES = 16
LOCATE_SECONDS = 3.0


class PluginCaller:
    """Awaits a plugin's async methods and runs its sync methods in one thread, started on first use.

    A method that the plugin inherits unchanged is not called. If a plugin does not declare `blocking`,
    its `read` and `write` run in the event loop until they prove slow. A change of threads costs more
    than reading a few hundred records from a file.
    """

    def __init__(self, node: str, plugin: Plugin[Any]) -> None:
        self.plugin = plugin
        self.node = node
        self._thread: OwnedThread | None = None
        self.seconds = 0.0
        """How long the last `call_here` took."""
        self._slow_calls = 0
        self._yields_at = self._asks_at = float("-inf")
        sync = {name: not is_async(getattr(plugin, name)) for name in _LOOP_METHODS if hasattr(plugin, name)}
        here = {name for name, is_sync in sync.items() if is_sync and plugin.blocking in (None, False)}
        self.quick = self._here = frozenset(here)
        """The methods that may be called with `call_here`, which saves a coroutine and a turn of all tasks."""
        # Found once for each method: looking at signatures for every batch would cost more than the call.
        self._ways = {name: self._way(name) for name in _FLOW_METHODS if hasattr(plugin, name)}

    async def __call__(self, name: str, *args: Any) -> Any:
        way = self._ways.get(name)
        if way is None:
            way = self._ways[name] = self._way(name)
        try:
            return await way(*args)
        except Exception:
            raise
        except BaseException as raised:
            raise as_error(raised) from raised

    def _way(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.plugin, name)
        if is_async(method):
            return method  # type: ignore[no-any-return]
        if self.inherits(name):
            return _skip
        if self.plugin.blocking is False or name in self._here:
            return lambda *args: self._here_while_quick(name, *args)
        return lambda *args: self.in_thread(method, *args, final=name in _FINAL)

    async def _here_while_quick(self, name: str, *args: Any) -> Any:
        if self._slow_calls >= SLOW_CALLS_MAX:
            # For good, unlike a processor: a `read` that waits is quick while there is data, and would hold up
            # every pipeline each time that there is none.
            return await self.in_thread(getattr(self.plugin, name), *args)
        # Let other tasks run, or a source of single records would fill a whole batch before its first record is sent.
        # But not before each call: one round of all tasks costs more than a small batch.
        if trio.current_time() >= self._yields_at:
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._yields_at = trio.current_time() + TURN_SECONDS
        return self.call_here(name, *args)

    def call_here(self, name: str, *args: Any) -> Any:
        """Call a quick method in the task of the caller, which lets other tasks run now and then."""
        # As `OWN_CLOCK.start`, without the call: this runs twice for every batch.
        if (started := time.perf_counter()) >= self._asks_at:
            started = OWN_CLOCK.start()
            self._asks_at = OWN_CLOCK.asked_at + OWN_CLOCK.WHOLE_SECONDS
        try:
            return getattr(self.plugin, name)(*args)
        finally:
            self.seconds = time.perf_counter() - started
            # On a busy machine a call may be slow because it was not run, which no thread would mend.
            if self.seconds <= SLOW_SECONDS or OWN_CLOCK.seconds_since(started) <= SLOW_SECONDS:
                self._slow_calls = 0
            # Any call may be slow once. Only a call that blocks is slow several times in a row.
            elif self.plugin.blocking is None:
                self._slow_calls += 1
                if self._slow_calls >= SLOW_CALLS_MAX:
                    self.quick = frozenset()

    async def in_thread(self, call: Callable[..., Any], *args: Any, final: bool = False) -> Any:
        if self._thread is None:
            # On first use: most plugins are async or quick, and never need one.
            self._thread = OwnedThread(self.node)
        return await self._thread.run(call, *args, final=final)

    def inherits(self, name: str) -> bool:
        method = getattr(type(self.plugin), name, None)
        return any(
            method is getattr(base, name, _NONE)
            for base in (SourceConnector, DestinationConnector, Processor, Connector)
        )

    @property
    def busy(self) -> bool:
        """True while a call is running in the thread, even if its caller was cancelled."""
        return self._thread is not None and self._thread.busy

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    async def join(self) -> None:
        """Wait until no call is running. Call this after `close`."""
        if self._thread is not None:
            await self._thread.join()


_NONE = object()
_LOOP_METHODS = ("read", "write")
_FLOW_METHODS = (*_LOOP_METHODS, "ack", "flush", "answers", "teardown")
_FINAL = ("teardown", "close")


async def _skip(*args: Any) -> None:
    """Stand in for an inherited method."""


def is_async(call: Callable[..., Any]) -> bool:
    # A callable object has its coroutine function on the class; the object itself is none.
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


class ThreadStay:
    """Decides how long a processor that was slow stays in a thread before it returns to the event loop.

    It returns after enough quick batches in a row: more, the longer it was slow, and twice as many each time. So a
    processor that is slow now and then holds up the event loop ever more rarely. Time in which the machine ran
    others in place of its thread does not count.
    """

    def __init__(self, clock: OwnClock = OWN_CLOCK) -> None:
        self.clock = clock
        self.now = clock.now
        self.asks_at = float("-inf")
        """From when on `start` tells when a call begins; before that, `now` does, without asking the system."""
        self.slow_seconds = SLOW_SECONDS
        self._begun = False
        self._quick = 0
        self._quick_needed = QUICK_BATCHES // 2

    def start(self) -> float:
        """Return the time at which a call in the event loop begins, for `clock.seconds_since`."""
        started = self.clock.start()
        self.asks_at = self.clock.asked_at + self.clock.WHOLE_SECONDS
        return started

    def time(self, call: Callable[..., T], *args: Any) -> tuple[T, float]:
        """Return the result of a call, and how long it took, in seconds."""
        started = self.clock.start()
        return call(*args), self.clock.seconds_since(started)

    def begin(self, seconds: float) -> None:
        """Begin a stay, after the event loop was held up for this long."""
        self._begun = True
        self._quick = 0
        self._quick_needed = max(2 * self._quick_needed, round(QUICK_BATCHES * seconds / self.slow_seconds))

    def is_over(self, seconds: float) -> bool:
        """Note that a batch in the thread took this long; return True if it ends the stay."""
        self._quick = self._quick + 1 if seconds <= QUICK_SECONDS else 0
        over = self._begun and self._quick >= self._quick_needed
        self._begun = self._begun and not over
        return over


@dataclass(slots=True, eq=False)
class PluginErrors(AbstractContextManager["PluginErrors"]):
    """Translates what a plugin raises in a block: a RunError keeps its class, everything else becomes NodeFailed."""

    node: str
    doing: str

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.translate(error)

    def translate(self, error: BaseException) -> None:
        """Name the node in an error that may be raised as it is, else raise another. For `except` on the quick path."""
        if isinstance(error, RunError):
            # The innermost node wins: processors run in the task of another node.
            error.node = error.node or self.node
            return
        try:
            cause = as_plugin_error(error)
        except RunError as fatal:
            fatal.node = self.node
            raise
        # An error of ours that ends no run by itself, such as JournalUnfit, says what to do.
        advice = cause.suggestion if isinstance(cause, ConduitError) else None
        if advice is None and (location := code_location(cause)) is not None:
            advice = f"see {location}"
        raise NodeFailed(self.node, self.doing, cause, suggestion=advice) from cause


def check_reading(node: str, returned: Any, n: int) -> Reading:
    """Check what `read(n)` of a source returned; return it as a Reading."""
    reading = returned if isinstance(returned, Reading) else Reading(returned)
    records, refused, position = reading.records, reading.refused, reading.position
    if position is not None and (type(position) is not bytes or not position):
        raise ContractBroken(node, f"read() returned the position {position!r}: it must be bytes, and not empty")
    count = 0
    if isinstance(records, Payloads):
        count = len(records.payloads)
        if records.columns is not None or len(records.positions) != count:
            _check_columns(node, records, count)
    elif isinstance(records, list) and set(map(type, records)) <= RECORD_TYPES:
        count = len(records)
    elif records or position is not None:
        raise ContractBroken(node, "read() must return a list of Record")
    if not count and (position is None or refused):
        # A loop around a source that returns nothing, and does not say so, would never sleep.
        raise ContractBroken(node, "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource")
    if count > n:
        raise ContractBroken(node, f"read({n}) returned {count} records")
    if refused != {}:
        _check_refused(node, refused, count)
    return reading


def _check_columns(node: str, records: Payloads, count: int) -> None:
    columns: dict[str, Any] = {} if records.columns is None else msgspec.structs.asdict(records.columns)
    for name, column in ("positions", records.positions), *columns.items():
        # A payload without its value of a column would make no record, and be acked.
        if column is not None and len(column) != count:
            raise ContractBroken(node, f"read() returned {count} payloads with {len(column)} {name}")


def check_positions(node: str, positions: Sequence[bytes], last: bytes) -> bytes:
    """Check the positions of a batch behind `last`; return the last of them.

    An empty position would erase the stored one, and a repeated one is ambiguous.
    """
    # The usual class first, without the calls that make each of them: an abstract one is asked by several.
    if type(positions) is Positions:
        first, end = positions.ends
        if positions.repeats or first == last:
            raise ContractBroken(node, _POSITION_TWICE)
        return end
    if isinstance(positions, LazyPositions):
        repeats = positions.repeats
    elif set(map(type, positions)) != {bytes}:
        kind = next(type(position).__name__ for position in positions if type(position) is not bytes)
        raise ContractBroken(node, f"read() returned a record whose position is {kind}, not bytes")
    elif not all(positions):
        raise ContractBroken(node, "read() returned a record without a position")
    else:
        repeats = len(set(positions)) < len(positions)
    if repeats or positions[0] == last:
        raise ContractBroken(node, _POSITION_TWICE)
    return positions[-1]


_POSITION_TWICE = "read() returned a position twice"


def _check_refused(node: str, refused: Any, count: int) -> None:
    """Check each reading by itself: in a joined batch, a wrong index would refuse a record of another reading."""
    if not isinstance(refused, Mapping):
        rule = f"read() must return refused records as a mapping of index to reason, not {type(refused).__name__}"
        raise ContractBroken(node, rule)
    for index in refused:
        if not isinstance(index, int) or not 0 <= index < count:
            raise ContractBroken(node, f"read() refused record {index!r} of {count}")


def check_refusals(node: str, answer: Any, count: int) -> dict[int, str]:
    """Check what `write` returned for `count` records; return the refused ones as index → reason, in order."""
    if not answer:
        return {}
    if not isinstance(answer, Mapping):
        rule = f"write() must return None or a mapping of index to reason, not {type(answer).__name__}"
        raise ContractBroken(node, rule)
    # A wrong index would ack a record that the destination refused.
    for index in answer:
        if not isinstance(index, int) or not 0 <= index < count:
            raise ContractBroken(node, f"write() refused record {index!r} of a batch of {count}")
    return {index: refusal_text(answer[index]) for index in sorted(answer)}


class PositionInvalid(FleetError):
    """The source cannot go on from this position; the message has the reason."""

    code = "position.invalid"


def check_position(node: str, connector: SourceConnector[Any], position: bytes) -> None:
    """Raise PositionInvalid if the source could never go on after this position."""
    try:
        connector.fresh().check_position(position)
    except BaseException as raised:  # plugin boundary: a source may raise anything for bytes that it did not make
        error = as_error(raised)
        raise PositionInvalid(
            f"{node} cannot go on after this position: {describe(error)}",
            suggestion="give one that it made, as `conduit-py positions show` and `history` print them",
        ) from error


async def locate_record(connector: Connector[Any], position: bytes) -> str | None:
    """Return what a source calls the place of a record; None if it has no answer, fails or takes too long."""
    if not isinstance(connector, SourceConnector) or type(connector).locate_record is SourceConnector.locate_record:
        return None
    found: object = None
    # Shielded: this is about an error, and the run that has it may be cancelled already.
    with trio.move_on_after(LOCATE_SECONDS, shield=True):
        try:
            found = await trio.to_thread.run_sync(connector.fresh().locate_record, position, abandon_on_cancel=True)
        except BaseException as raised:  # plugin boundary: a message without the place is better than none
            log.debug("a record cannot be located", exc_info=as_error(raised))
    return found if isinstance(found, str) else None
