"""HotSwap: replaces the processors of a run while it runs."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from conduit_py.errors import FatalError, RunError
from conduit_py.pipeline import Processor
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.processor_node import ProcessorNode, close_all
from conduit_py.stream.worker import WorkerPool

log = logging.getLogger("conduit_py")

LOOK_SECONDS = 0.05
"""The interval between checks that the last record of the old processors is settled."""
CLOSE_SECONDS = 10.0


class HotSwap:
    """Replaces processors of a run without stopping it.

    Every record passes only old processors or only new ones. A record registered before the swap keeps
    the old ones at every node, also for its retries. The old processors are closed when the last such
    record is settled, or when the run ends.
    """

    def __init__(self, nodes: Mapping[str, ProcessorNode], ledgers: Mapping[str, Ledger]) -> None:
        self._nodes = nodes
        self._ledgers = ledgers
        self._opening = False
        self._decided = trio.Event()
        self._nursery: trio.Nursery | None = None

    def begin(self) -> None:
        """Note that the run starts to open its processors; until then `swap` only replaces definitions."""
        self._opening = True

    @asynccontextmanager
    async def allow(self) -> AsyncIterator[None]:
        """Allow swaps while the block runs. The processors must be open."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._decided.set()
            try:
                yield
            finally:
                # From here on `swap` returns False: nothing would close what it opens now.
                self._nursery = None
                nursery.cancel_scope.cancel()

    def end(self) -> None:
        """Release every waiting `swap`: the run has ended, even if it never started its tasks."""
        self._decided.set()

    async def swap(self, processors: Mapping[str, Processor]) -> bool:
        """Replace the processors of these nodes, all or none. Returns False if the run ended before the swap.

        The new processors are opened first. If one cannot be opened, its error is raised and the old ones stay.
        """
        if not self._opening:
            for node, declared in processors.items():
                self._nodes[node].replace(declared)
            return True
        await self._decided.wait()
        if self._nursery is None:
            return False
        pools = await self._open(processors)
        # The run may have ended while the processors were opened.
        if self._nursery is None:
            await _close(list(pools.values()))
            return False
        # No await from here on: a record registered in between would pass old and new processors.
        since = {source: ledger.next_sequence for source, ledger in self._ledgers.items()}
        for node, pool in pools.items():
            self._nodes[node].begin(pool, since)
        self._nursery.start_soon(self._retire, pools, since)
        return True

    async def _open(self, processors: Mapping[str, Processor]) -> dict[str, WorkerPool]:
        pools: dict[str, WorkerPool] = {}
        try:
            for node, declared in processors.items():
                state = self._nodes[node].state
                if state is not None and state.waits:
                    # Two processors would read and change the part that is in memory in two threads.
                    what = f"{node} cannot be replaced while it runs: its state is larger than its cache"
                    raise FatalError(what, suggestion="start the pipeline again")
                pools[node] = self._nodes[node].new_pool(declared)
                await pools[node].open()
        except BaseException:
            await _close(list(pools.values()))
            raise
        return pools

    async def _retire(self, pools: Mapping[str, WorkerPool], since: Mapping[str, int]) -> None:
        # Polling is cheaper here: a notification would cost time for every batch of every run.
        while any(ledger.has_before(since[source]) for source, ledger in self._ledgers.items()):  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)
        await _close([old for node, pool in pools.items() for old in self._nodes[node].retire(pool)])


async def _close(pools: list[WorkerPool]) -> None:
    """Close idle pools. An error is only logged, because no record depends on these pools."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS) as scope:
        try:
            await close_all(pools)
        except RunError as error:
            log.warning("a replaced processor failed to close: %s", error.message)
    if scope.cancelled_caught:
        log.warning("a replaced processor did not close within %g s and was abandoned", CLOSE_SECONDS)
