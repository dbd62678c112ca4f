"""DeadLetterStore: the dead letters that a store keeps, and what a caller may rely on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from conduit_py.dead_letter import DeadLetter
from conduit_py.defaults import LETTERS_LISTED, LETTERS_PAGE_MAX
from conduit_py.record import Record
from conduit_py.store.sql_letters import SqlLetters
from conduit_py.store.stored_letter import (
    CauseCount,
    LetterCount,
    LetterFilter,
    LetterPage,
    QueuedLetter,
    SettledLetter,
    StoredLetter,
)

T = TypeVar("T")


class DeadLetterStore(ABC):
    """The dead letters of all pipelines with the handler `journal`.

    A message has one letter at most: to store it again replaces the letter. As with the store, a write
    is durable when it returns, and atomic; one that raises StateFailed, or whose caller is cancelled,
    may or may not have become durable, but never in part. One trio run uses it.
    """

    def __init__(self) -> None:
        self._watchers: dict[str, Callable[[], None]] = {}
        self.counts: list[LetterCount] = []
        """The result of the last `count`."""

    async def store(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters, in this order."""
        await self._change(lambda table: table.store(map(StoredLetter.of, letters)))

    async def letter(self, id: str) -> StoredLetter:
        """One letter with its records. Raises LetterUnknown."""
        return await self._look(lambda table: table.letter(id))

    async def page(self, filter: LetterFilter, before: int | None = None, limit: int = LETTERS_LISTED) -> LetterPage:
        """Letters that match, newest first, from where the last page ended."""
        return await self._look(lambda table: table.page(filter, before, limit))

    async def causes(self, filter: LetterFilter, limit: int = LETTERS_PAGE_MAX) -> list[CauseCount]:
        """Letters that match, counted by node and cause; the most frequent first."""
        return await self._look(lambda table: table.causes(filter, limit))

    async def count(self) -> list[LetterCount]:
        """How many letters there are, and how large, by pipeline and state."""
        self.counts = await self._look(SqlLetters.counts)
        return self.counts

    async def queue(self, pipeline: str, wanted: Mapping[str, Collection[str]]) -> list[str]:
        """Queue letters of a pipeline, by id, for replay to these of their nodes; a running pipeline is notified.

        Returns the ids of those that were not queued before. Queueing a letter twice has no further effect.
        """
        queued = await self._change(lambda table: table.queue(wanted))
        if queued and pipeline in self._watchers:
            self._watchers[pipeline]()
        return queued

    async def replay_queue(self, pipeline: str, after: int, limit: int) -> list[QueuedLetter]:
        """The queued letters of a pipeline whose turn is after this one, in order."""
        return await self._look(lambda table: table.replay_queue(pipeline, after, limit))

    async def settle(self, settled: Sequence[SettledLetter]) -> None:
        """Replace letters that were replayed by what is left of them, in one transaction."""
        await self._change(lambda table: table.settle(settled))

    async def edit(self, id: str, records: Mapping[str, Record]) -> StoredLetter:
        """Replace the records at some nodes of a letter. Raises LetterUnknown, and LetterBusy for a queued one."""
        return await self._change(lambda table: table.edit(id, records))

    async def discard(self, filter: LetterFilter) -> int:
        """Delete the letters that match. One that is being replayed may still be delivered."""
        return await self._change(lambda table: table.discard(filter))

    async def retain(self, pipeline: str, since: float | None, count_max: int | None) -> int:
        """Delete letters last refused before `since`, and the oldest above `count_max`; queued letters stay."""
        return await self._change(lambda table: table.retain(pipeline, since, count_max))

    @contextmanager
    def watch(self, pipeline: str, notice: Callable[[], None]) -> Iterator[None]:
        """Within the block, `notice` is called when letters of the pipeline were queued."""
        self._watchers[pipeline] = notice
        try:
            yield
        finally:
            # A later run of the pipeline may have replaced ours already.
            if self._watchers.get(pipeline) is notice:
                del self._watchers[pipeline]

    @abstractmethod
    async def close(self) -> None:
        """Finish what is running, then release everything. The store it belongs to calls this."""

    @abstractmethod
    async def _look(self, work: Callable[[SqlLetters], T]) -> T:
        """Run work that only reads."""

    @abstractmethod
    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        """Run work in one transaction: its changes are durable on return, or there are none."""
