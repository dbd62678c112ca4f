"""Drivers: call a connector as the runtime does, and hold it to its contract while doing so.

Every check is a function that raises AssertionError when its rule is broken; `run_check` runs one.
"""

import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import trio

from conduit_py.batch import Batch, MessageId, Piece, Span
from conduit_py.payloads import Payloads
from conduit_py.record import Record
from conduit_py.sdk.destination import AckMode, Answer, DestinationConnector
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading, SharedSource, SourceConnector
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.plugin_calls import PluginCaller, is_async
from conduit_py.stream.source_calls import ShardTracker

RECORDS_MAX = 10_000
"""A source that gives more than this counts as one without an end."""


@dataclass(frozen=True)
class SourceCase:
    """A source under test. `records` is how many it holds, for a source without an end."""

    connector: SourceConnector[Any]
    records: int | None = None

    @property
    def bounded(self) -> bool:
        return self.records is None

    @property
    def resumable(self) -> bool:
        """True if it continues at a position. One that shares its work has a position for each shard."""
        return self.connector.resumable and not isinstance(self.connector, SharedSource)


@dataclass(frozen=True)
class DestinationCase:
    """A destination under test.

    `stored` reads back what the system behind it holds: the `payload.after` of every record, in order.
    `sample(n)` makes the records to write; `refused`, if there is one, is a record it must refuse. `outage()` makes
    the system unreachable for the time of a `with` block; a system that is `always_there`, such as a list, has none.
    """

    connector: DestinationConnector[Any]
    stored: Callable[[], Sequence[Any]]
    sample: Callable[[int], Record]
    refused: Record | None = None
    outage: Callable[[], AbstractContextManager[object]] | None = None
    always_there: bool = False


class WatchedCaller(PluginCaller):
    """Notes the calls that were cut short, so that a check that takes too long can name the method."""

    cut_short: ClassVar[list[tuple[float, str]]] = []
    """When, and which."""

    async def __call__(self, name: str, *args: Any) -> Any:
        try:
            return await super().__call__(name, *args)
        except trio.Cancelled:
            self.cut_short.append((trio.current_time(), f"{type(self.plugin).__name__}.{name}"))
            raise


class SourceDriver:
    """One opened source. Every reading is checked, so any check finds a source that returns nonsense."""

    def __init__(self, case: SourceCase) -> None:
        self.connector = case.connector.fresh()
        self._case = case
        self._calls = WatchedCaller("source", self.connector)
        self._reading = trio.CancelScope()
        self._stopped = False
        self.readings: list[Reading] = []
        """Everything that was read since it was opened."""

    async def open(self, position: bytes | None) -> None:
        if isinstance(self.connector, SharedSource):
            ShardTracker(self.connector, MemoryStore().shards, "acceptance/source")
        await self._calls("open", position)

    async def start_position(self) -> bytes | None:
        start: bytes | None = await self._calls("start_position")
        return start

    async def read(self, n: int) -> list[Record]:
        """Read at most n records; repeats the call while there is only progress or nothing, unless it was stopped."""
        while not self._stopped:
            try:
                with trio.CancelScope() as self._reading:
                    reading = self._checked_reading(await self._calls("read", n), n)
                    self.readings.append(reading)
                    if reading.records:
                        return list(reading.records)
                    await trio.lowlevel.checkpoint()
            except NothingYet:
                await trio.sleep(0.01)
        raise EndOfSource

    def _checked_reading(self, reading: Any, n: int) -> Reading:
        checked = reading if isinstance(reading, Reading) else Reading(reading)
        _check_records(checked, n)
        position = checked.position
        valid = position is None or (type(position) is bytes and position != b"")
        require(valid, f"read returned the position {position!r}: it must be bytes, and not empty")
        declared = not checked.continues or self.connector.has_groups
        require(declared, "read returned a part of a group, but the source does not declare has_groups")
        return checked

    async def read_all(self, n: int = 100, *, limit: int | None = None) -> list[Record]:
        """Everything up to the end, or up to the number of records that the case promises, or `limit`."""
        wanted = limit if limit is not None else self._case.records
        records: list[Record] = []
        while wanted is None or len(records) < wanted:
            try:
                records += await self.read(n if wanted is None else min(n, wanted - len(records)))
            except EndOfSource:
                break
            rule = f"more than {RECORDS_MAX} records and no end: give the suite records=… for a source without an end"
            require(len(records) <= RECORDS_MAX, rule)
        return records

    async def ack(self, positions: Sequence[bytes]) -> None:
        await self._calls("ack", positions)

    async def stop(self) -> None:
        """End a waiting read as the runtime does: by calling `stop`, or by cancelling an async read that has none."""
        self._stopped = True
        stop: Any = self.connector.stop
        if is_async(stop):
            await stop()
        elif not self._calls.inherits("stop"):
            # Not in the connector's own thread: that one may be inside `read`.
            await trio.to_thread.run_sync(stop, abandon_on_cancel=True)
        elif is_async(self.connector.read):
            self._reading.cancel()

    async def hook(self, name: str, *args: Any) -> None:
        await self._calls(name, *args)

    async def teardown(self) -> None:
        try:
            await self._calls("teardown")
        finally:
            self._calls.close()


class DestinationDriver:
    """One opened destination. `deliver` returns when the records count as handled, by its own ack mode."""

    def __init__(self, case: DestinationCase) -> None:
        self.connector = case.connector.fresh()
        self._acks: AckMode = self.connector.acks
        self._calls = WatchedCaller("destination", self.connector)

    async def open(self) -> None:
        await self._calls("open")

    async def deliver(self, batch: Batch) -> dict[int, str]:
        """Write a batch and wait until it is handled; the refused indices with their reasons."""
        refused = _checked_refusals(await self._calls("write", batch), batch)
        if self._acks is not AckMode.WRITE:
            await self.flush()
        if self._acks is AckMode.LATER:
            refused |= await self._collect_answers(batch, refused)
        return refused

    async def flush(self) -> None:
        await self._calls("flush")

    async def hook(self, name: str, *args: Any) -> None:
        await self._calls(name, *args)

    async def call(self, name: str, *args: Any) -> Any:
        """Call a method as the runtime does."""
        return await self._calls(name, *args)

    async def teardown(self) -> None:
        try:
            await self._calls("teardown")
        finally:
            self._calls.close()

    async def _collect_answers(self, batch: Batch, refused: Mapping[int, str]) -> dict[int, str]:
        waiting = {message: index for index, message in enumerate(batch.ids) if index not in refused}
        later: dict[int, str] = {}
        while waiting:
            for answer in await self._calls("answers"):
                if isinstance(answer, Batch):
                    _check_answered(answer, waiting)
                    continue
                index = _checked_answer(answer, waiting)
                if answer.refused is not None:
                    later[index] = answer.refused
        return later


@asynccontextmanager
async def opened_destination(case: DestinationCase) -> AsyncIterator[DestinationDriver]:
    driver = DestinationDriver(case)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.teardown()


def batch_of(
    records: Sequence[Record], *, first: int = 0, source: str = "source", pieces: Sequence[Piece] | None = None
) -> Batch:
    """A batch as a destination gets it; with `pieces`, those of one split record."""
    if pieces is not None:
        span = Span("acceptance", source, first, [records[0].position])
        return Batch(span, list(records), [first] * len(records), pieces)
    return Batch.whole(Span("acceptance", source, first, [record.position for record in records]), list(records))


def require(condition: bool, rule: str) -> None:
    """Raise AssertionError with the rule that the connector broke."""
    if not condition:
        raise AssertionError(rule)


def _check_records(reading: Reading, n: int) -> None:
    records = reading.records
    rule = f"read must return a list of records or Payloads, not {type(records).__name__}"
    require(isinstance(records, list | Payloads), rule)
    if isinstance(records, Payloads):
        counts = f"{len(records)} payloads with {len(records.positions)} positions"
        require(len(records) == len(records.positions), f"read returned {counts}")
        kinds = {type(payload) for payload in records.payloads}
        require(records.kind is None or kinds <= {records.kind}, f"read returned payloads that are no {records.kind}")
    for record in records:
        require(type(record) is Record, f"read must return records, not {type(record).__name__}")
        require(bool(record.position), "read returned a record without a position")
    rule = "read returned nothing: wait for a record, or raise NothingYet or EndOfSource"
    require(bool(records) or reading.position is not None, rule)
    require(len(records) <= n, f"read({n}) returned {len(records)} records: at most as many as asked for are allowed")
    for index in reading.refused:
        require(0 <= index < len(records), f"read refused record {index} of {len(records)}")


def _checked_refusals(refusals: Any, batch: Batch) -> dict[int, str]:
    if refusals is None:
        return {}
    rule = f"write must return None or a mapping of index to reason, not {type(refusals).__name__}"
    require(isinstance(refusals, Mapping), rule)
    for index in refusals:
        valid = isinstance(index, int) and 0 <= index < len(batch)
        require(valid, f"write refused record {index!r} of a batch of {len(batch)}")
    return {index: str(reason) for index, reason in refusals.items()}


def _check_answered(batch: Batch, waiting: dict[MessageId, int]) -> None:
    """All of its messages that wait are handled; some must."""
    found = [message for message in batch.ids if waiting.pop(message, None) is not None]
    require(bool(found), f"answered for a batch of {len(batch)}, none of which is waiting for an answer")


def _checked_answer(answer: Any, waiting: dict[MessageId, int]) -> int:
    require(isinstance(answer, Answer), f"answers must give Answer or Batch, not {type(answer).__name__}")
    require(answer.message in waiting, f"answered for {answer.message}, which is not waiting for an answer")
    return waiting.pop(answer.message)


SourceCheck: TypeAlias = Callable[[SourceCase], Awaitable[None]]
DestinationCheck: TypeAlias = Callable[[DestinationCase], Awaitable[None]]


END_SECONDS = 5.0
"""How long a thread or an open file may outlive its connector before it counts as a leak."""


class DoesNotApply(Exception):
    """The rule does not apply to this connector. The message gives the reason."""


def run_check(check: Callable[[Any], Awaitable[None]], case: Any, *, seconds: float = 120.0) -> None:
    """Run one check on the real clock. One that takes longer than `seconds` has failed."""

    async def within_deadline() -> None:
        with trio.move_on_after(seconds) as scope:
            await check(case)
        if scope.cancelled_caught:
            # The first that the deadline has cut short: a teardown that follows is cut short as well.
            where = next((call for at, call in WatchedCaller.cut_short if at >= scope.deadline), None)
            blame = f": {where} has not returned" if where else ""
            raise AssertionError(f"the rule {check.__name__} did not end within {seconds:g} seconds{blame}")

    WatchedCaller.cut_short.clear()
    trio.run(within_deadline)


async def leaves_nothing_behind(live: Callable[[list[object]], Awaitable[None]]) -> None:
    """Check that `live`, a connector's whole life, leaves no thread and no open file.

    `live` puts the connectors it used into the list it is given: as long as they are alive, what they
    forgot to close stays open and can be counted.
    """
    alive: list[object] = []
    await live(alive)  # the first time may open what stays open on purpose, such as caches of libraries
    threads, files = await _leave_behind(live, alive)
    if files > 0 and not threads:
        # Files are counted for the whole process, so somebody else may have opened them: what leaks does so again.
        threads, files = await _leave_behind(live, alive)
    require(not threads, f"{threads} threads are left behind by three runs")
    require(files <= 0, f"{files} open files are left behind by three runs")


async def _leave_behind(live: Callable[[list[object]], Awaitable[None]], alive: list[object]) -> tuple[int, int]:
    """Live three times. How many threads and open files are there more than before?"""
    threads, files = _threads(), _files()
    for _ in range(3):
        await live(alive)
    # A thread that was asked to end takes a moment, on a busy machine a long one. Both are looked for until they are
    # gone once, each for itself: a thread of somebody else in this process may come and go at any look.
    left, opened = _threads() - threads, _files() - files
    deadline, pause = time.monotonic() + END_SECONDS, 0.05
    while (left or opened > 0) and time.monotonic() < deadline:
        await trio.sleep(pause)
        # Mostly a thread only needs the pause. To look at all objects of a large process takes longer than that.
        if pause > 0.1:
            gc.collect()
        left = left and _threads() - threads
        opened = min(opened, _files() - files)
        pause *= 1.5
    return len(left), opened


def _threads() -> set[threading.Thread]:
    # trio keeps idle worker threads for later use; they are nobody's leak.
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio")}


def _files() -> int:
    return len(os.listdir("/dev/fd"))
