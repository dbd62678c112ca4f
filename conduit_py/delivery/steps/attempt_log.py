"""AttemptLog: the entries of one step in a journal of their own, which one process at a time may write."""

import uuid
from collections.abc import AsyncIterator

from conduit_py.delivery.steps.attempts import Entry, Snapshot, Takeover, decode, encode
from conduit_py.journal.journal import Journal
from conduit_py.journal.registers import Selector

AUTHOR = "author"
_PRUNE_EVERY = 1024


class AttemptLog:
    """Whoever took over last may append; all others get Fenced."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._author = uuid.uuid4().hex
        self._newest: Entry | None = None
        self._snapshots = 0

    async def take_over(self) -> None:
        """From here on nobody else's entries are taken, so what is read back now is the last word."""
        await self._journal.append([encode(Takeover())], union={AUTHOR: self._author})

    async def append(self, entry: Entry) -> None:
        commit = await self._journal.append([encode(entry)], check=Selector({AUTHOR: self._author}))
        self._newest = entry
        if isinstance(entry, Snapshot):
            self._snapshots += 1
            if self._snapshots % _PRUNE_EVERY == 0:
                await self._journal.prune(commit.begin)

    async def newest_first(self) -> AsyncIterator[Entry]:
        """The entries of the last step and of a few before it."""
        for frame in await self._journal.call(self._back):
            yield decode(frame)

    @property
    def newest(self) -> Entry | None:
        """The last entry of this run."""
        return self._newest

    def _back(self) -> list[bytes]:
        """Back to the nearest snapshot: what lies before it is of no use any more."""
        found: list[bytes] = []
        for frame in self._journal.log.backward():
            found.append(frame.bodies[0])
            if isinstance(decode(found[-1]), Snapshot):
                break
        return found
