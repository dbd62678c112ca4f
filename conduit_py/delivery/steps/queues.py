"""Queues: the journals of a graph by name, opened once each."""

from collections.abc import Mapping
from pathlib import Path

from conduit_py.delivery.steps.metadata import Keeping
from conduit_py.delivery.steps.queue import Queue
from conduit_py.journal.journal import Journal
from conduit_py.journal.log import SyncPolicy


class Queues:
    """Every queue in a folder of its own under one root; without a root all of them live in memory.

    Graphs that are to share queues are given the same root or, in one process, the same Queues.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        sync: SyncPolicy = "always",
        metadata: Mapping[str, Keeping] | None = None,
    ) -> None:
        self._root = Path(root) if root is not None else None
        self._sync = sync
        self._metadata = dict(metadata or {})
        self._journals: dict[str, Journal] = {}
        self._queues: dict[str, Queue] = {}

    def __getitem__(self, id: str) -> Queue:
        """A queue that has been opened."""
        return self._queues[id]

    async def open(self, id: str) -> Queue:
        """A queue, made if it is not there yet."""
        if id not in self._queues:
            self._queues[id] = Queue(id, await self.journal(f"queues/{id}"), self._metadata.get(id))
        return self._queues[id]

    async def journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = await self._open(name)
        return self._journals[name]

    async def close(self) -> None:
        """Let go of all of them; what is in memory is gone with this object."""
        journals, self._journals, self._queues = self._journals, {}, {}
        for journal in journals.values():
            await journal.close()

    async def _open(self, name: str) -> Journal:
        if self._root is None:
            return Journal.in_memory(name)
        return await Journal.open(self._root / name, sync=self._sync)
