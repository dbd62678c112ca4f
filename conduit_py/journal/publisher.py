"""Publisher: gives messages their ids, and knows which journals its transaction has to acknowledge."""

from typing import NamedTuple

from conduit_py.journal.clock import Clock
from conduit_py.journal.message_id import Flag, MessageId, ProducerId


class AckIntent(NamedTuple):
    """The ACK that commits a transaction in one journal: durable before it is written, written again after a fault."""

    journal: str
    id: MessageId


class Publisher:
    """The ids of one producer: strictly increasing in the order in which they are taken.

    Take an id in the same step in which the append gets its place in the journal's queue (`Journal.append`
    does, when given one of these methods as `stamp`): a smaller clock behind a larger one would be taken for
    a repetition. A publisher lives as long as a claim of the work, and no longer.
    """

    def __init__(self, producer: ProducerId | None = None, clock: Clock | None = None) -> None:
        self.producer = producer or ProducerId.random()
        # A clock that is shared with other publishers is theirs to set.
        self._follows_wall = clock is None
        self._clock = clock or Clock()
        self._open: dict[str, None] = {}

    def committed(self, count: int = 1) -> MessageId:
        """The id of the first of `count` messages that readers see at once."""
        return self._take(count, Flag.OUTSIDE)

    def uncommitted(self, journal: str, count: int = 1) -> MessageId:
        """The id of the first of `count` messages that readers see once the transaction is acknowledged."""
        self._open[journal] = None
        return self._take(count, Flag.CONTINUE)

    def acknowledge(self) -> MessageId:
        """An ACK of its own, beyond every id taken before."""
        return self._take(1, Flag.ACK)

    def ack_intents(self) -> list[AckIntent]:
        """One ACK for each journal of the open transaction, in the order of first use; begins the next one."""
        journals, self._open = self._open, {}
        return [AckIntent(journal, self.acknowledge()) for journal in journals]

    def _take(self, count: int, flag: Flag) -> MessageId:
        if self._follows_wall:
            self._clock.update_to_now()
        return MessageId(self.producer, self._clock.tick(count), flag)
