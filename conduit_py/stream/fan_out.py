"""FanOut: sends the batches of a node to one or more followers."""

from types import TracebackType

import trio

from conduit_py.batch import Batch
from conduit_py.stream.meter import Meter, WaitReason


class FanOut:
    """Sends every batch to every follower; `send` returns when all have received it.

    Followers that may change records get copies, so no branch sees the changes of another.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._followers: list[tuple[trio.MemorySendChannel[Batch], bool]] = []

    def add(self, channel: "trio.MemorySendChannel[Batch]", *, changes_records: bool) -> None:
        self._followers.append((channel, changes_records))

    async def send(self, batch: Batch) -> None:
        several = len(self._followers) > 1
        waiting = []
        for channel, changes_records in self._followers:
            own = _copy(batch) if several and changes_records else batch
            try:
                channel.send_nowait(own)
            except trio.WouldBlock:
                waiting.append((channel, own))
        # Invariant 1: no send is abandoned or left to a task, so each follower receives batches in order.
        # Invariant 7: the next batch is taken only when the slowest follower has received this one.
        for channel, own in waiting:
            with self._meter.waiting(WaitReason.CHANNEL):
                await channel.send(own)
        if not waiting:
            # `send_nowait` is no checkpoint: a sender that never waits would starve every other task.
            await trio.lowlevel.checkpoint()

    def __enter__(self) -> "FanOut":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # However the task ends: the loop of a follower ends only when its channel does (invariant 8).
        for channel, _ in self._followers:
            channel.close()


def _copy(batch: Batch) -> Batch:
    return Batch(batch.span, [record.copy() for record in batch.records], batch.sequences, batch.pieces)
