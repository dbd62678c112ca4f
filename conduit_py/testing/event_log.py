"""EventLog: what scripted connectors saw and stored, over all runs that share it.

Their records are numbered, so that a lost, repeated or reordered record shows at a glance.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import trio

from conduit_py.record import Record

if TYPE_CHECKING:
    from conduit_py.testing.crash import Outage


class Event(msgspec.Struct, frozen=True):
    """One thing that an end saw happen, at a time of the run's clock."""

    at: float
    node: str
    did: str
    what: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.at:g} {self.node} {self.did} {' '.join(self.what)}".rstrip()


class ReceivedRecord(msgspec.Struct, frozen=True):
    """One record as it reached a destination, with what names it there."""

    source: str
    record: Record
    key: bytes

    @property
    def number(self) -> int | None:
        return number_of(self.record)

    @property
    def label(self) -> str:
        return f"{self.source}:{self.number}"


class EventLog:
    """The world around a pipeline under test: what its ends saw, and what they made durable.

    Give the same log to all ends of a pipeline. It outlives runs, so that after a failure and a
    restart a test can compare what the sources had with what the destinations hold. The ends also
    watch how the runtime treats them: `violations` lists every call that breaks the SDK's promises.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.violations: list[str] = []
        self.read: defaultdict[str, list[bytes]] = defaultdict(list)
        """Per source: the positions it returned, in order."""
        self.acked: defaultdict[str, list[bytes]] = defaultdict(list)
        """Per source: the positions acked to it, in order."""
        self.received: defaultdict[str, list[ReceivedRecord]] = defaultdict(list)
        """Per destination: what was written to it, in order, durable or not."""
        self.stored: defaultdict[str, list[ReceivedRecord]] = defaultdict(list)
        """Per destination: what it made durable, in order."""
        self.pruned: Counter[str] = Counter()
        """Per source that prunes: how many records are gone for ever."""
        self.open_ends: Counter[str] = Counter()
        """Per end: how many were opened and not torn down since."""
        self.outage: Outage | None = None
        """A power cut to come; after it nothing is noted or kept any more."""
        self._counts: Counter[str] = Counter()

    def note(self, node: str, did: str, *what: str) -> bool:
        """Note what happens now; False if it does not happen, because of an outage."""
        if self.outage is not None and not self.outage.pass_moment():
            return False
        self.events.append(Event(trio.current_time(), node, did, what))
        return True

    def reads(self, node: str, positions: Sequence[bytes]) -> None:
        if self.note(node, "read", *(position.decode() for position in positions)):
            self.read[node].extend(positions)

    def acks(self, node: str, position: bytes, *, prune: bool) -> None:
        if not self.note(node, "ack", position.decode()):
            return
        self.acked[node].append(position)
        if prune and position.isdigit():
            self.pruned[node] = max(self.pruned[node], int(position) + 1)

    def writes(self, node: str, delivery: ReceivedRecord) -> None:
        if self.note(node, "write", delivery.label):
            self.received[node].append(delivery)

    def stores(self, node: str, delivery: ReceivedRecord) -> None:
        if self.note(node, "store", delivery.label):
            self.stored[node].append(delivery)

    def violation(self, node: str, what: str) -> None:
        if self.outage is None or not self.outage.struck:
            self.violations.append(f"{node}: {what}")

    def count(self, place: str) -> int:
        """How often this place has been asked for, this time included."""
        self._counts[place] += 1
        return self._counts[place]

    def did(self, did: str, node: str | None = None) -> list[Event]:
        """The events of one kind, of one end or of all."""
        return [event for event in self.events if event.did == did and node in (None, event.node)]

    def numbers(self, destination: str = "destination", source: str | None = None) -> list[int | None]:
        """The numbers of the records that a destination holds, in order, of one source or of all."""
        return [each.number for each in self.stored[destination] if source in (None, each.source)]

    def trace(self) -> list[str]:
        """Everything that happened, a line each: equal traces mean equal runs."""
        return [str(event) for event in self.events]

    def check(self, *, after_run: bool = False) -> None:
        """Raise AssertionError with all the promises that the runtime broke towards the ends.

        After a run, leaving an end without teardown is one of them.
        """
        broken = list(self.violations)
        if after_run:
            broken += [f"{node}: was opened and never torn down" for node, count in self.open_ends.items() if count]
        if broken:
            raise AssertionError("the runtime broke the SDK's promises:\n  " + "\n  ".join(broken))


class CallOrder:
    """Notes a violation for every call that comes too early, too late, or beside one it must not meet.

    `open` comes first and once; `teardown` comes once, last, also after a failed open. Calls of one
    `group` never overlap; calls of different groups may.
    """

    def __init__(self, node: str, log: EventLog) -> None:
        self._node = node
        self._log = log
        self._running: list[tuple[str, str]] = []
        self._opened = False
        self._open_called = False
        self._torn_down = False

    @contextmanager
    def call(self, name: str, *, group: str = "main") -> Iterator[None]:
        self._watch(name, group)
        self._running.append((group, name))
        try:
            yield
        finally:
            self._running.remove((group, name))
        # Not after a failed open: only teardown may follow that.
        if name == "open":
            self._opened = True

    def _watch(self, name: str, group: str) -> None:
        # Nothing at all may run beside teardown, whatever its group.
        beside = [other for used, other in self._running if used == group or name == "teardown"]
        if beside:
            self._report(f"{name} was called while {', '.join(beside)} was running")
        if self._torn_down:
            self._report(f"{name} was called after teardown")
        if name == "open":
            if self._open_called:
                self._report("open was called twice")
            self._open_called = True
            self._log.open_ends[self._node] += 1
        elif name == "teardown":
            if not self._open_called:
                self._report("teardown was called before open")
            elif not self._torn_down:
                self._log.open_ends[self._node] -= 1
            self._torn_down = True
        elif not self._opened:
            self._report(f"{name} was called before open had returned")

    def _report(self, what: str) -> None:
        self._log.violation(self._node, what)


def numbered_record(number: int, source: str = "source") -> Record:
    """The record `number` of `source`, at the position of that number."""
    return Record.of({"n": number, "from": source}, key={"n": number}, position=position_of(number))


def position_of(number: int) -> bytes:
    return b"%d" % number


def number_of(record: Record) -> int | None:
    """The number of a record or of a dead letter about one; None if it has none."""
    after = record.payload.after
    if isinstance(after, dict) and isinstance(after.get("n"), int):
        number: int = after["n"]
        return number
    # What a processor or the dead-letter handler wraps up keeps the position it came from.
    return int(record.position) if record.position.isdigit() else None
