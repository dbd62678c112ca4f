"""HotSwap: other processors for a run, while it runs."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from conduit_py.errors import RunError
from conduit_py.pipeline import Processor
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.worker import WorkerPool, close_all

log = logging.getLogger("conduit_py")

LOOK_SECONDS = 0.05
"""How often to look whether the last record of the old processors is settled."""
CLOSE_SECONDS = 10.0


class HotSwap:
    """Exchanges processors of a run without stopping it.

    Every record goes through the old processors or through the new ones, never through some of each:
    what had set out before the exchange keeps the old ones, wherever it is, also for its retries. The
    old ones are closed when the last such record is settled, or with the run.
    """

    def __init__(self, nodes: Mapping[str, ProcessorNode], ledgers: Mapping[str, Ledger]) -> None:
        self._nodes = nodes
        self._ledgers = ledgers
        self._opening = False
        self._decided = trio.Event()
        self._nursery: trio.Nursery | None = None

    def begin(self) -> None:
        """The processors are about to be opened."""
        self._opening = True

    @asynccontextmanager
    async def allow(self) -> AsyncIterator[None]:
        """The processors are open and work as long as the block lasts."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._decided.set()
            try:
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def end(self) -> None:
        """The run is over, whether or not it ever worked."""
        self._decided.set()

    async def swap(self, processors: Mapping[str, Processor]) -> bool:
        """Exchange the processors of these nodes, all or none; False if the run ended before that was in effect.

        The new ones are opened first. When one cannot be opened, its error is raised and the old ones go on.
        """
        if not self._opening:
            for node, declared in processors.items():
                self._nodes[node].replace(declared)
            return True
        await self._decided.wait()
        if self._nursery is None:
            return False
        pools = await self._open(processors)
        if self._nursery is None:
            await _close(list(pools.values()))
            return False
        # No await from here on: between two batches of a source everything changes at once.
        since = {source: ledger.next_sequence for source, ledger in self._ledgers.items()}
        for node, pool in pools.items():
            self._nodes[node].begin(pool, since)
        self._nursery.start_soon(self._retire, pools, since)
        return True

    async def _open(self, processors: Mapping[str, Processor]) -> dict[str, WorkerPool]:
        pools: dict[str, WorkerPool] = {}
        try:
            for node, declared in processors.items():
                pools[node] = self._nodes[node].new_pool(declared)
                await pools[node].open()
        except BaseException:
            await _close(list(pools.values()))
            raise
        return pools

    async def _retire(self, pools: Mapping[str, WorkerPool], since: Mapping[str, int]) -> None:
        # Looked at now and then: no batch should pay for a notification.
        while any(ledger.has_before(since[source]) for source, ledger in self._ledgers.items()):  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)
        await _close([old for node, pool in pools.items() for old in self._nodes[node].retire(pool)])


async def _close(pools: list[WorkerPool]) -> None:
    """Close pools that have nothing left to do. An error is only logged: no record depends on it any more."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS) as scope:
        try:
            await close_all(pools)
        except RunError as error:
            log.warning("a processor that was exchanged failed to close: %s", error.message)
    if scope.cancelled_caught:
        log.warning("a processor that was exchanged did not close within %g s and is left behind", CLOSE_SECONDS)
