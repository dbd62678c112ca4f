"""ReadAhead: reads a source that only the driver can read, while jobs run with what it read before."""

from collections import deque
from typing import NamedTuple

import trio

from conduit_py.record import Record
from conduit_py.sdk.source import NothingYet, Reading
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.stream.signal import IdleBackoff


class ReadRecord(NamedTuple):
    """A record, and why its source could not parse it, if so."""

    record: Record
    refused: str | None


class ReadAhead:
    """Reads while it holds fewer than `size_max` records that nobody has taken.

    It is a task of its own from `start` to `close`: a `read` that waits must not delay the records before it, and must
    not be cancelled in the middle of a run.
    """

    def __init__(self, calls: PluginCaller, size_max: int) -> None:
        self._calls = calls
        self._size_max = size_max
        self._drawn: deque[ReadRecord] = deque()
        self._error: Exception | None = None
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.quiet = False
        """Whether the last `read` raised NothingYet."""

    def start(self) -> None:
        trio.lowlevel.spawn_system_task(self._run)

    async def take(self, n: int) -> list[ReadRecord]:
        """Wait for records and return at most `n`. Raises an error of `read` once all records before it are taken."""
        while not self._drawn:
            if self._error is not None:
                raise self._error
            await self._change()
        taken = [self._drawn.popleft() for _ in range(min(n, len(self._drawn)))]
        self._tell()
        return taken

    async def has_input(self) -> bool:
        """Wait until there is something to take or to raise (True), or the source has nothing now (False)."""
        while not self._drawn and self._error is None:
            if self.quiet:
                return False
            await self._change()
        return True

    @property
    def empty(self) -> bool:
        """Whether `take` would wait or raise."""
        return not self._drawn

    async def close(self) -> None:
        """Stop reading. A record that was read and not taken is read again in the next run."""
        self._scope.cancel()
        await self._ended.wait()

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._read_all()
        except Exception as error:  # a border: `take` raises it
            self._error = error
        finally:
            self._ended.set()
            self._tell()

    async def _read_all(self) -> None:
        # Not the loop of `stream.reader`: there is no window, no meter and no stop here, and errors wait for `take`.
        idle = IdleBackoff()
        while True:
            while (room := self._size_max - len(self._drawn)) <= 0:
                await self._change()
            try:
                self._keep(await self._calls("read", room))
                idle.reset()
            except NothingYet:
                self.quiet = True
                self._tell()
                await trio.sleep(idle.next())

    def _keep(self, reading: list[Record] | Reading) -> None:
        records, refused = (reading.records, reading.refused) if isinstance(reading, Reading) else (reading, {})
        self.quiet = False
        self._drawn += [ReadRecord(record, refused.get(index)) for index, record in enumerate(records)]
        self._tell()

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
