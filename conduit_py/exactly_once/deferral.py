"""HeldRecords: the records that a processor has deferred to the next transaction."""

from collections import deque

import trio

from conduit_py.batch import Batch
from conduit_py.exactly_once.gate import TransactionGate


class HeldRecords:
    """Gives a processor the batches of its inbox, and shuts behind the record before a deferred one.

    What has not passed the door has touched neither state nor destination, for there is no processor with state
    and no fan-out before it: so the transaction is complete when everything else is settled, and the positions
    of what is held are not in its commit. Shut, the door takes in what comes, for only there it is known to be
    held. The committer opens it with the next transaction, which begins with what was held, in order.
    """

    def __init__(self, gate: TransactionGate, voters: int) -> None:
        self._gate = gate
        self._voters = voters.bit_count()
        self._inbox: deque[Batch] = deque()
        self._shut = False

    async def receive(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """The next batch: one that was held, or one that comes. Raises EndOfChannel."""
        return self._inbox.popleft() if self._inbox else await inbox.receive()

    async def next_transaction(self, rest: Batch, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """Have the transaction end before these records; they are given back when the next one has begun."""
        self._inbox.appendleft(rest)
        self._shut = True
        opened = self._gate.defer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_in, inbox)
            await opened.wait()
            nursery.cancel_scope.cancel()
        return self._inbox.popleft()

    async def _take_in(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> None:
        async for batch in inbox:
            self._inbox.append(batch)
            self._gate.changed.set()

    @property
    def held(self) -> list[Batch]:
        """What waits for the next transaction."""
        return list(self._inbox) if self._shut else []

    @property
    def votes(self) -> dict[tuple[str, int], int]:
        """How many votes are outstanding on what is held, by the source and first sequence of its span."""
        return {(batch.span.source, batch.span.first): len(batch) * self._voters for batch in self.held}

    def open(self) -> None:
        """What is held belongs to the transaction that begins now."""
        self._shut = False
