"""FanIn: the inbox of a task, which several nodes may send to."""

import trio

from conduit_py.batch import Batch


class FanIn:
    """A bounded channel with one receiver and any number of senders.

    Senders that wait are served in turn, so fan-in is fair over live inputs. The channel ends when every sender
    has closed its end.
    """

    def __init__(self, size: int) -> None:
        self._sender, self.inbox = trio.open_memory_channel[Batch](size)

    def connect(self) -> "trio.MemorySendChannel[Batch]":
        """An end for one more sender, which must close it."""
        return self._sender.clone()

    def seal(self) -> None:
        """All senders are connected."""
        # Or the channel would stay open for ever: it ends when its last sender has closed.
        self._sender.close()

    @property
    def queued(self) -> int:
        """How many batches wait."""
        return self.inbox.statistics().current_buffer_used
