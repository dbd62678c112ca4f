"""How a batch gets from node to node.

`run_chain`: through adjacent processors. FanOut: to every follower of a node. FanIn: into the inbox of a follower,
which several nodes may send to.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType

import trio

from conduit_py.batch import Batch
from conduit_py.stream.commit import Deferral
from conduit_py.stream.held_batches import HeldBatches
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.signal import Pace


class FanIn:
    """A bounded channel with one receiver and any number of senders.

    Waiting senders are served in turn, so a busy input cannot starve the others. The channel ends when every
    sender has closed its end.
    """

    def __init__(self, size: int) -> None:
        self._sender, self.inbox = trio.open_memory_channel[Batch](size)
        self.take_at_once: Callable[[Batch], bool] = _refuse
        """Takes a batch without the channel, if the receiver can do that now; True if it has."""

    def connect(self) -> "trio.MemorySendChannel[Batch]":
        """Return a sending end for one more sender, which must close it."""
        return self._sender.clone()

    def seal(self) -> None:
        """Allow no more senders. Call this when all are connected."""
        # The channel ends when its last sender closes. With this one open it would never end (invariant 8).
        self._sender.close()

    @property
    def queued(self) -> int:
        """The number of batches waiting in the channel."""
        return self.inbox.statistics().current_buffer_used


def _refuse(batch: Batch) -> bool:
    return False


class FanOut:
    """Sends every batch to every follower.

    Followers that may change records get copies, so no branch sees the changes of another.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._followers: list[tuple[FanIn, trio.MemorySendChannel[Batch], bool]] = []

    def add(self, follower: FanIn, *, changes_records: bool) -> None:
        self._followers.append((follower, follower.connect(), changes_records))

    def send(self, batch: Batch) -> Awaitable[None] | None:
        """Send a batch; return None, or what must be awaited before the next batch is sent.

        This is no checkpoint. A sender that never waits must let other tasks run by itself.
        """
        # Without copies for one follower: mostly there is one, and it takes the batch at once.
        only = len(self._followers) == 1
        waiting = []
        for (follower, channel, _), own in zip(self._followers, [batch] if only else self._copies(batch), strict=True):
            if not follower.take_at_once(own):
                try:
                    channel.send_nowait(own)
                except trio.WouldBlock:
                    waiting.append((channel, own))
        return self._wait(waiting) if waiting else None

    async def _wait(self, waiting: "list[tuple[trio.MemorySendChannel[Batch], Batch]]") -> None:
        # Invariant 1: no send is abandoned or left to a task, so each follower receives batches in order.
        # Invariant 7: the next batch is taken only when the slowest follower has received this one.
        for channel, own in waiting:
            with self._meter.waiting(WaitReason.CHANNEL):
                await channel.send(own)

    def _copies(self, batch: Batch) -> list[Batch]:
        """Return the batch for each follower: a copy for each that may change records, if others see them too."""
        changing = [changes for *_, changes in self._followers]
        copies = [batch.copy(deep=True) if changes else batch for changes in changing[:-1]]
        # The last one may have the original if nobody else sees it.
        last = batch.copy(deep=True) if changing[-1] and not all(changing) else batch
        return [*copies, last]

    def __enter__(self) -> "FanOut":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # However the task ends: the loop of a follower ends only when its channel does (invariant 8).
        for _, channel, _ in self._followers:
            channel.close()


async def run_processors(inbox: "trio.MemoryReceiveChannel[Batch]", chain: list[ProcessorNode], out: FanOut) -> None:
    """Run adjacent processors as one task: a channel between them would only cost time."""
    with inbox, out:
        async for batch in inbox:
            await run_chain(chain, batch, out)


async def run_collecting(
    inbox: "trio.MemoryReceiveChannel[Batch]",
    chain: list[ProcessorNode],
    out: FanOut,
    collector: HeldBatches,
    must_leave: Callable[[], bool],
) -> None:
    """As `run_processors`, if records wait for others before the first one. While `must_leave` is true none waits."""
    first, *others = chain
    with inbox, out:
        ended = False
        while not ended:
            ended = await _collect(inbox, collector)
            while batches := collector.next_batches(everything=ended or must_leave()):
                # Apart again: each batch goes on with the span under which its votes are counted.
                for batch in await first.apply_together(batches):
                    await run_chain(others, batch, out)


async def _collect(inbox: "trio.MemoryReceiveChannel[Batch]", collector: HeldBatches) -> bool:
    """Hold the next batch, or wait until something held may be due. Returns True if the inbox has ended."""
    until = collector.due_at
    if until < math.inf:
        # Not only when it is due: a window may be full before, or a transaction end.
        until = min(until, trio.current_time() + Pace.SECONDS_MAX)
    with trio.move_on_at(until):
        try:
            collector.hold(await inbox.receive())
        except trio.EndOfChannel:
            return True
    return False


async def run_chain(chain: Sequence[ProcessorNode], batch: Batch, out: FanOut) -> None:
    """Apply processors to a batch in order, then send the rest of it downstream."""
    if (sending := start_chain(chain, batch, out)) is not None:
        await sending


def start_chain(chain: Sequence[ProcessorNode], batch: Batch, out: FanOut) -> Awaitable[None] | None:
    """As `run_chain`, as far as nothing has to be waited for; return the rest, which must be awaited at once.

    It holds the batch alone if its caller does: what a processor replaces is freed at once, while it is in the caches.
    """
    for number, node in enumerate(chain, 1):
        if not batch.count:
            return None
        applied = node.apply(batch)
        if not isinstance(applied, Batch):
            return _finish_chain(chain[number:], applied, out)
        batch = applied
    return out.send(batch) if batch.count else None


async def _finish_chain(chain: Sequence[ProcessorNode], applied: Awaitable[Batch], out: FanOut) -> None:
    await run_chain(chain, await applied, out)


async def run_deferring(
    inbox: "trio.MemoryReceiveChannel[Batch]", chain: list[ProcessorNode], out: FanOut, deferral: Deferral
) -> None:
    """As `run_processors`, if the first one may defer. Records before the deferred one are sent at once."""
    first, *others = chain
    with inbox, out, suppress(trio.EndOfChannel):
        while True:
            batch = await deferral.receive(inbox)
            while batch:
                passed, batch = await first.apply_in_part(batch)
                await run_chain(others, passed, out)
                if batch:
                    batch = await deferral.next_transaction(batch, inbox)
