"""Journal: a log for trio. Appends of concurrent tasks share a write and an fsync; readers can wait for more."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, Unpack

import outcome
import trio

from conduit_py.journal.errors import JournalFailed
from conduit_py.journal.file_log import FileLog, FileLogOptions
from conduit_py.journal.frame import Frame
from conduit_py.journal.log import Append, Commit, FrameBatchReader, Log, MemoryLog
from conduit_py.journal.message_id import NO_ID, MessageUuid
from conduit_py.journal.registers import Labels, Selector
from conduit_py.owned_thread import GroupThread, Request

Stamp: TypeAlias = Callable[[int], MessageUuid]
"""Called with the number of bodies when the append has its place: the id of the first. See Publisher."""

T = TypeVar("T")

POLL_SECONDS = (0.001, 0.05)
"""Between looks at files that another process may append to: at first, and at most."""


class Journal:
    """Any number of tasks of one trio run may use it at the same time.

    Appends are made in the order in which `append` was called (invariant I1), in one thread that belongs to the
    journal. A caller that is cancelled leaves at once; its append is made nevertheless.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.name = log.name
        self.groups = 0
        """How many writes the appends took."""
        self._thread: GroupThread[_Request] | None = None
        self._closed = False
        self._appended = trio.Event()

    @classmethod
    async def open(cls, directory: Path | str, **options: Unpack[FileLogOptions]) -> "Journal":
        """Open the journal in a directory; options are those of FileLog."""
        return cls(await trio.to_thread.run_sync(partial(FileLog, directory, **options)))

    @classmethod
    def in_memory(cls, name: str = "memory") -> "Journal":
        return cls(MemoryLog(name))

    async def append(
        self,
        bodies: Sequence[bytes],
        *,
        stamp: Stamp | MessageUuid = NO_ID,
        check: Selector | None = None,
        union: Labels | None = None,
        subtract: Labels | None = None,
        at: int | None = None,
    ) -> Commit:
        """Append bodies as one frame, as `Log.append` does."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise JournalFailed(f"journal {self.name} is closed")
        # Invariant I2: from here to the queue there is no other task, so ids grow in the order of the journal.
        id = stamp if isinstance(stamp, MessageUuid) else stamp(len(bodies))
        append = Append(bodies, id, check, union or {}, subtract or {}, at)
        # In memory without a thread, or a simulation could not repeat the run.
        if self.log.instant:
            answer = self.log.append_all([append])[0]
            self._wake()
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            answer = await self._append_thread().ask(_Request(append))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def barrier(self) -> Commit:
        """Wait until every earlier append is as durable as the policy makes it; return the head and the registers."""
        return await self.append(())

    async def read(
        self, offset: int = 0, *, end: int | None = None, block: bool = False
    ) -> AsyncGenerator[Frame, None]:
        """The frames from an offset on, up to `end`. At the head: wait for more with `block`, else stop.

        Close it when done, with `async with aclosing(journal.read())`.
        """
        reader = FrameBatchReader(await self.call(self.log.reader, offset), end)
        pause = POLL_SECONDS[0]
        try:
            while not reader.ended:
                # Taken before the read: an append in between sets this event, so no wake-up is lost.
                appended = self._appended
                frames = await self.call(reader.read)
                for frame in frames:
                    if end is not None and frame.begin >= end:
                        return
                    yield frame
                if frames:
                    pause = POLL_SECONDS[0]
                    continue
                if not block:
                    return
                # Another process that appends to the files sets no event here, so the wait must be short.
                with trio.move_on_after(math.inf if self.log.instant else pause):
                    await appended.wait()
                pause = min(2 * pause, POLL_SECONDS[1])
        finally:
            reader.close()

    async def last(self, count: int) -> list[Frame]:
        """The newest frames, the newest first."""
        return await self.call(lambda: list(islice(self.log.backward(), count)))

    async def prune(self, before: int) -> int:
        """Delete whole segments before an offset. Returns the offset of the oldest frame that is left."""
        return await self.call(self.log.prune, before)

    async def close(self) -> None:
        """Finish the appends already begun, then release everything. A second close has no effect."""
        if not self._closed:
            self._closed = True
            # A cancelled close would leave the thread behind with the files open.
            with trio.CancelScope(shield=True):
                if self._thread is not None:
                    self._thread.close()
                    await self._thread.join()
                self.log.close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, call: Callable[..., T], *args: object) -> T:
        """Call something that reads the log, in a thread if that may take time."""
        if self.log.instant:
            await trio.lowlevel.checkpoint()
            return call(*args)
        return await trio.to_thread.run_sync(call, *args)

    def _append_thread(self) -> "GroupThread[_Request]":
        if self._thread is None:
            self._thread = GroupThread(f"journal-{self.name}", self._append_group, delivering=self._wake)
        return self._thread

    def _append_group(self, requests: "list[_Request]") -> None:
        """Group commit, in the thread: the appends that wait when it comes round share one write and one fsync."""
        answers = outcome.capture(self.log.append_all, [request.append for request in requests])
        for index, request in enumerate(requests):
            request.answer = _share(answers, index)

    def _wake(self) -> None:
        """Wake the readers of this process that wait at the head."""
        self.groups += 1
        self._appended.set()
        self._appended = trio.Event()


def _share(answers: "outcome.Outcome[list[Any]]", index: int) -> "outcome.Outcome[Any]":
    if isinstance(answers, outcome.Value):
        return outcome.Value(answers.value[index])
    # Each task raises an error of its own, or they would add to each other's tracebacks.
    assert isinstance(answers, outcome.Error)
    error = copy(answers.error)
    error.__cause__ = answers.error.__cause__
    return outcome.Error(error)


@dataclass(slots=True, eq=False)
class _Request(Request):
    append: Append
