"""FanIn: the inbox of a task, which several nodes may send to."""

from collections.abc import Callable

import trio

from conduit_py.batch import Batch


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
