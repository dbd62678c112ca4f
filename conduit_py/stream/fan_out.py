"""FanOut: where a node sends its batches, to one follower or to several."""

from types import TracebackType

import trio

from conduit_py.batch import Batch
from conduit_py.pipeline import Delivery
from conduit_py.stream.meter import Meter

CHANNEL_SIZE = 2
"""Batches waiting on an edge: enough for both ends to work at once, too few to hide a slow one."""
TRANSACTION_CHANNEL_SIZE = 16
"""The same where writers wait for the last transaction to be committed: the next one is read meanwhile."""


def channel_size(delivery: Delivery) -> int:
    return TRANSACTION_CHANNEL_SIZE if delivery == "exactly_once" else CHANNEL_SIZE


class FanOut:
    """Hands every batch to every follower, and returns when all have received it (fan-out).

    Followers that may change records get copies, so that branches never see each other's changes.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._followers: list[tuple[trio.MemorySendChannel[Batch], bool]] = []

    def add(self, channel: trio.MemorySendChannel[Batch], *, changes_records: bool) -> None:
        self._followers.append((channel, changes_records))

    async def send(self, batch: Batch) -> None:
        several = len(self._followers) > 1
        waiting = []
        for channel, changes_records in self._followers:
            given = _copied(batch) if several and changes_records else batch
            try:
                channel.send_nowait(given)
            except trio.WouldBlock:
                waiting.append((channel, given))
        for channel, given in waiting:
            with self._meter.waiting("channel"):
                await channel.send(given)
        if not waiting:
            # A sender that never waits would starve everybody else.
            await trio.lowlevel.checkpoint()

    def __enter__(self) -> "FanOut":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel, _ in self._followers:
            channel.close()


def _copied(batch: Batch) -> Batch:
    return Batch(batch.span, [record.copy() for record in batch.records], batch.sequences, batch.pieces)
