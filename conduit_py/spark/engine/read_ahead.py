"""ReadAhead: reads a source that only the driver can read, while jobs run with what it read before.

`measure_rest` tells how much there is to read of any other.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from conduit_py.errors import FatalError
from conduit_py.record import CollectionSchema, Record
from conduit_py.sdk.source import Lag, NothingYet, Reading
from conduit_py.stream.plugin_calls import PluginCaller, check_reading
from conduit_py.stream.signal import IdleBackoff

LAG_SECONDS = 1.0
"""How long a run may wait for the answer of a source before it reads."""


class ReadRecord(NamedTuple):
    """A record, and why its source could not parse it, if so."""

    record: Record
    refused: str | None


class TakenRecords(NamedTuple):
    """Records in the order of the source. They may be none, if there is progress."""

    records: list[ReadRecord]
    schemas: Sequence[CollectionSchema] = ()
    """The schemas that hold from the first of these records on, if they are new."""
    position: bytes | None = None
    """Where the source continues after them, if it said so without a record."""


@dataclass
class _Held:
    """Records with the same schemas, and the progress after the last of them."""

    records: deque[ReadRecord]
    schemas: Sequence[CollectionSchema]
    position: bytes | None = None


class ReadAhead:
    """Reads while it holds fewer than `size_max` records that nobody has taken.

    It is a task of its own from `start` to `close`: a `read` that waits must not delay the records before it, and must
    not be cancelled in the middle of a run.
    """

    def __init__(self, calls: PluginCaller, size_max: int, *, records_only: bool = False) -> None:
        self._calls = calls
        self._size_max = size_max
        self._records_only = records_only
        """True if the consumer has no use for progress and schemas: then a source that has some is refused."""
        self._held: deque[_Held] = deque()
        self._size = 0
        self._error: Exception | None = None
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.quiet = False
        """Whether the last `read` raised NothingYet."""

    def start(self) -> None:
        trio.lowlevel.spawn_system_task(self._run)

    async def take(self, n: int) -> TakenRecords:
        """Wait for records and return at most `n`. Raises an error of `read` once all records before it are taken."""
        while not self._held:
            if self._error is not None:
                raise self._error
            await self._wait()
        first = self._held[0]
        records = [first.records.popleft() for _ in range(min(n, len(first.records)))]
        schemas, first.schemas = first.schemas, ()
        # Progress is after all records before it, so it waits for the last of them.
        position = None if first.records else first.position
        if not first.records:
            self._held.popleft()
        self._size -= len(records)
        self._wake()
        return TakenRecords(records, schemas, position)

    async def has_input(self) -> bool:
        """Wait until there is something to take or to raise (True), or the source has nothing now (False)."""
        while not self._held and self._error is None:
            if self.quiet:
                return False
            await self._wait()
        return True

    @property
    def empty(self) -> bool:
        """Whether `take` would wait or raise."""
        return not self._held

    async def close(self) -> None:
        """Stop reading. A record that was read and not taken is read again in the next run."""
        self._scope.cancel()
        await self._ended.wait()

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._read_all()
        except Exception as error:  # plugin boundary: `take` raises it
            self._error = error
        finally:
            self._ended.set()
            self._wake()

    async def _read_all(self) -> None:
        # Not the loop of `Reader`: here is no window, no meter and no stop, and errors wait for `take`. What a
        # source may return is the same, so `check_reading` is shared.
        idle = IdleBackoff()
        while True:
            # A part without a record is bounded too.
            while (room := self._size_max - max(self._size, len(self._held) - 1)) <= 0:
                await self._wait()
            try:
                self._keep(await self._calls("read", room), room)
                idle = IdleBackoff()
            except NothingYet:
                self.quiet = True
                self._wake()
                await trio.sleep(idle.next())

    def _keep(self, reading: Any, room: int) -> None:
        checked = check_reading(self._calls.node, reading, room)
        if self._records_only:
            refuse_uncarried(self._calls.node, checked)
        self.quiet = False
        # A change of a schema begins another part: one part has one schema for each collection.
        if checked.schemas or not self._held:
            self._held.append(_Held(deque(), checked.schemas))
        last, refused = self._held[-1], checked.refused
        last.records += [ReadRecord(record, refused.get(index)) for index, record in enumerate(checked.records)]
        # Progress before a record is not lost: the position of that record is beyond it.
        last.position = checked.position
        self._size += len(checked.records)
        self._wake()

    async def _wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def refuse_uncarried(node: str, reading: Reading) -> None:
    """Raise FatalError for what only a source on the driver of a pipeline may return: progress, and schemas."""
    if reading.position is None and not reading.schemas:
        return
    # Loud, not dropped: the position would never be acked, and destinations would miss the schema.
    what = "progress without a record" if reading.position is not None else "a schema"
    raise FatalError(
        f"{node} read {what}, which a part of a source and a data source of Spark cannot pass on",
        suggestion='read it in a pipeline, on the engine "trio" or on the driver of Spark',
    )


async def measure_rest(calls: PluginCaller) -> int | None:
    """Return how many bytes an open source has not read; None if it cannot tell, or not soon."""
    # No error of `lag` ends a run, and no run waits for one that hangs.
    with suppress(Exception), trio.move_on_after(LAG_SECONDS):
        lag = await calls("lag")
        return lag.bytes if isinstance(lag, Lag) else None
    return None
