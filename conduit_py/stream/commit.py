"""CommitStrategy: decides when the progress of a run becomes durable; one strategy for each delivery guarantee.

Nodes call the strategy at four moments. `admit` comes before records are sent, and `before_write` before a batch is
written. `settle` comes when the oldest records of a source are settled, and `finish` when a source ends. `CommitEach`
is at-least-once and `CommitFirst` is at-most-once; `CommitTogether`, exactly-once, is in `exactly_once/`.

`RunParts` is what of a run a strategy works with, and `NodeContext` what of it one node does.
"""

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import trio

from conduit_py.batch import Batch, Span
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import RunError
from conduit_py.graph.node import Graph
from conduit_py.inspect.tap_point import TapPoint
from conduit_py.record import Record
from conduit_py.sdk.destination import DestinationConnector
from conduit_py.sdk.state import State
from conduit_py.store.store import Store
from conduit_py.stream.ledger import Ledger, SettledRange
from conduit_py.stream.meter import Meter

if TYPE_CHECKING:
    from conduit_py.stream.dead_letters import DeadLetterHandler
    from conduit_py.stream.plugin_calls import PluginCaller
    from conduit_py.stream.reader import ReadBuffer
    from conduit_py.stream.replay import Replay
    from conduit_py.stream.settler import Settler

log = logging.getLogger("conduit_py")

CHANNEL_SIZE = 2
"""Batches waiting in a channel: enough for both ends to work at once, too few to hide a slow receiver."""

LIGHT_MESSAGES_MAX = 64
"""A commit of so few messages is followed by the next one without waiting for more."""


@dataclass(frozen=True)
class Task:
    """A task of a run. A background task is cancelled when all other tasks have ended."""

    node: str
    run: Callable[[], Awaitable[None]]
    background: bool = False


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that a commit strategy works with, by node."""

    settlers: "Mapping[str, Settler]"
    ledgers: Mapping[str, Ledger]
    read_buffers: "Mapping[str, ReadBuffer]"
    meters: Mapping[str, Meter]
    states: Mapping[str, State]
    destinations: "Mapping[str, PluginCaller]"
    outbox: "Mapping[str, PluginCaller]"
    dead_letters: "DeadLetterHandler"
    replay: "Replay | None"
    observe_transaction: Callable[[Any], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts of a run that one node uses. `voters` are the destinations that the node can reach.

    `ledgers` has one ledger per source. It is filled while nodes are made, so use it only for a batch.
    """

    node: str
    voters: int
    ledgers: Mapping[str, Ledger]
    meter: Meter
    rng: random.Random
    tap_point: TapPoint
    commit: "CommitStrategy"

    def ack(self, span: Span, sequences: Sequence[int]) -> None:
        """Cast an ack of every voter of this node for these messages of a span, which may be a joined one."""
        ledger = self.ledgers[span.source]
        if not span.parts:
            ledger.ack(span, sequences, self.voters)
            return
        for part, own in groupby(sequences, span.part):
            ledger.ack(part, list(own), self.voters)

    def nack(self, batch: Batch, index: int, record: Record, failure: Failure) -> None:
        """Cast a nack of every voter of this node for the message at `index`; its dead letter has `record`."""
        self.meter.refused += 1
        letter = DeadLetter.about(batch, index, record, failure)
        span = batch.span.part(letter.message.sequence)
        self.ledgers[span.source].nack(span, letter, self.voters)

    def refuse(self, batch: Batch, reasons: Mapping[int, str]) -> Batch:
        """Nack the records at these indices, which could not be parsed; return the rest of the batch."""
        for index in sorted(reasons):
            self.nack(batch, index, batch.record(index), Failure(self.node, reasons[index]))
        return batch.select([index for index in range(len(batch)) if index not in reasons])


class Deferral(Protocol):
    """Holds the records that a processor defers to the next transaction."""

    async def receive(self, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """Return the next batch: a held one first, then one from the inbox. Raises EndOfChannel."""
        ...

    async def next_transaction(self, rest: Batch, inbox: "trio.MemoryReceiveChannel[Batch]") -> Batch:
        """End the transaction before these records. Returns them when the next transaction has begun."""
        ...


class CommitStrategy(ABC):
    """One delivery guarantee, for one run.

    The run calls `enlist` when its nodes are made, and `claim` before it opens anything. It calls `recover` when
    destinations are open, but neither processors nor sources. Then it runs the tasks that `enlist` returned
    together with those of its nodes.
    """

    channel_size = CHANNEL_SIZE
    admits_at_once = False
    """True if `admit` does nothing, so that a batch need not wait for it."""
    awaits_flushes = False
    """True if a commit waits until destinations have flushed everything before it."""
    closing = False
    """True while a transaction waits for the records that are in flight, and admits no others."""
    holds_writes = False
    """True while nothing may be written before `before_write` returns."""
    admit_max: int | None = None
    """How many records `admit` takes at once; None for any number."""

    @abstractmethod
    def enlist(self, parts: RunParts) -> list[Task]:
        """Store the parts of the run; return the tasks that make its progress durable."""

    async def claim(self) -> None:
        """Make this run the only one that may commit."""
        return

    async def recover(self) -> None:
        """Carry out every intent that an earlier run committed and may not have carried out."""
        return

    @abstractmethod
    async def admit(
        self, source: str, records: Sequence[Record], positions: Sequence[bytes], continues: bool = False
    ) -> None:
        """Wait until these records may be sent to the first node. `continues`: they do not end their group."""

    def advance(self, source: str, continues: bool, *, new: bool) -> None:
        """Note a position without a record; the ledger has it if it is `new`. Without `continues` it ends a group."""
        return

    async def before_write(self) -> None:
        """Wait until destinations may be written to."""
        return

    @abstractmethod
    async def settle(self, source: str, ranges: Sequence[SettledRange]) -> None:
        """Make the position of these settled records durable, then ack them."""

    @abstractmethod
    def finish(self, source: str) -> None:
        """Note that this source will send no more records."""

    def stages(self, connector: DestinationConnector[Any]) -> bool:
        """Return True if writes to this destination become durable by the commit, not by `flush`."""
        return False

    def new_state(self, targets: frozenset[str] | None) -> State | None:
        """Return the state of one processor, if this guarantee supports state. It may publish to `targets`."""
        return None

    def new_deferral(self, node: str, voters: int) -> Deferral | None:
        """Return the deferral of one processor, if this guarantee has transactions."""
        return None

    def explain(self, error: RunError) -> None:
        """Add the record that caused it to an error that ends the run, if that is known."""
        return


class CommitEach(CommitStrategy):
    """At-least-once: the settler of each source saves its position, then acks.

    Invariant 2: nothing is saved before it is settled, so a crash repeats records and never skips one.
    """

    admits_at_once = True
    _settlers: "Mapping[str, Settler]"
    _replay: "Replay | None"

    def enlist(self, parts: RunParts) -> list[Task]:
        self._settlers, self._replay = parts.settlers, parts.replay
        tasks = [Task(node, settler.run) for node, settler in parts.settlers.items()]
        return tasks if parts.replay is None else [*tasks, Task(parts.replay.node, parts.replay.settle)]

    async def admit(
        self, source: str, records: Sequence[Record], positions: Sequence[bytes], continues: bool = False
    ) -> None:
        """Admit records as soon as they are read."""

    async def settle(self, source: str, ranges: Sequence[SettledRange]) -> None:
        settler = self._settlers[source]
        light = sum(each.stop - each.start for each in ranges) <= LIGHT_MESSAGES_MAX
        started = trio.current_time()
        # Where nothing follows each position, only the last one is made.
        await settler.commit([each.positions for each in (ranges if settler.tells_positions else ranges[-1:])])
        # The pace measures the commit: the slower the store, the more messages each commit covers.
        settler.pace.end_step(started, light=light)

    def finish(self, source: str) -> None:
        # Replayed dead letters have no settler: `Replay.settle` ends by itself.
        if source in self._settlers:
            self._settlers[source].finish()


class CommitFirst(CommitEach):
    """At-most-once: saves and acks a position before its record is sent. A crash loses the records in flight."""

    admits_at_once = False

    def enlist(self, parts: RunParts) -> list[Task]:
        self._ledgers = parts.ledgers
        self._admitted = dict.fromkeys(parts.settlers, 0)
        self._turns = {source: trio.Lock() for source in parts.settlers}
        return super().enlist(parts)

    async def admit(
        self, source: str, records: Sequence[Record], positions: Sequence[bytes], continues: bool = False
    ) -> None:
        async with self._turns[source]:
            self._admitted[source] = self._ledgers[source].next_sequence + len(positions)
            # Before the record is sent: a crash then loses it, and nothing is ever delivered twice.
            await self._settlers[source].commit([positions])

    async def settle(self, source: str, ranges: Sequence[SettledRange]) -> None:
        """Save progress without a record; `admit` has saved the positions of records."""
        last = ranges[-1]
        async with self._turns[source]:
            # Not if a record behind it was admitted: its position is saved, and must not be set back.
            if not last.records and last.span.first >= self._admitted[source]:
                await self._settlers[source].commit([last.positions])


class CommitSeries(Protocol):
    """Makes the commit strategy of every run of one pipeline."""

    def next(self, graph: Graph, store: Store) -> CommitStrategy:
        """Return the strategy of the next run."""
        ...

    def retries_at_once(self, error: RunError | None) -> bool:
        """Return True if the next run must start without back-off, in order to isolate the cause of this error."""
        ...


class IndependentRuns:
    """The series of a guarantee whose runs do not depend on each other."""

    def __init__(self, make: Callable[[], CommitStrategy]) -> None:
        self._make = make

    def next(self, graph: Graph, store: Store) -> CommitStrategy:
        return self._make()

    def retries_at_once(self, error: RunError | None) -> bool:
        return False
