"""Transactions of a journal: a Publisher writes messages that count once they are acknowledged, a CommittedReader reads
those that do, each once and in the order of their commits. A WriterClaim is the right to write for an owner.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from conduit_py.errors import Fenced
from conduit_py.journal.errors import RegisterMismatch
from conduit_py.journal.frame import Frame
from conduit_py.journal.log import Log, LogReader
from conduit_py.journal.message_id import Clock, Flag, MessageUuid, ProducerId
from conduit_py.journal.registers import Labels, Registers, Selector
from conduit_py.journal.sequencer import WINDOW, Checkpoint, Sequencer, Slice


class AckIntent(NamedTuple):
    """The ACK that commits a transaction in one journal. It is durable elsewhere first, and repeated after a crash."""

    journal: str
    id: MessageUuid


class Publisher:
    """The ids of one producer: strictly increasing in the order in which they are taken.

    Take an id in the same step in which the append enters the journal's queue: readers drop a smaller clock behind
    a larger one as a repetition. `Journal.append` does so when one of these methods is its `stamp`. Every claim needs
    a new publisher.
    """

    def __init__(self, producer: ProducerId | None = None, clock: Clock | None = None) -> None:
        self.producer = producer or ProducerId.random()
        # A clock that is shared with other publishers is theirs to set.
        self._follows_wall = clock is None
        self._clock = clock or Clock()
        self._open: dict[str, None] = {}

    def outside_transaction(self, count: int = 1) -> MessageUuid:
        """The id of the first of `count` messages that readers see at once."""
        return self._take(count, Flag.OUTSIDE)

    def in_transaction(self, journal: str, count: int = 1) -> MessageUuid:
        """The id of the first of `count` messages that readers see once the transaction is acknowledged."""
        self._open[journal] = None
        return self._take(count, Flag.CONTINUE)

    def acknowledge(self) -> MessageUuid:
        """An ACK of its own, beyond every id taken before."""
        return self._take(1, Flag.ACK)

    def ack_intents(self) -> list[AckIntent]:
        """One ACK for each journal of the open transaction, in the order of first use; begins the next one."""
        journals, self._open = self._open, {}
        return [AckIntent(journal, self.acknowledge()) for journal in journals]

    def _take(self, count: int, flag: Flag) -> MessageUuid:
        if self._follows_wall:
            self._clock.update_to_now()
        return MessageUuid(self.producer, self._clock.tick(count), flag)


class WriterClaim:
    """Once it is constructed, appends that check for an earlier claim of the same owner are refused.

    An owner has two registers: its writer, as `<fence>:<producer>`, and the earlier producers that may have left
    transactions open.
    """

    def __init__(self, log: Log, owner: str, fence: int, publisher: Publisher) -> None:
        self._log = log
        self._writer, self._former = f"writer/{owner}", f"former/{owner}"
        self._value = f"{fence}:{publisher.producer.hex()}"
        self.check = Selector(include={self._writer: self._value})
        self._take(owner, fence, publisher)

    def discard_former(self) -> None:
        """Roll back what earlier producers of the owner left open; their committed transactions are acknowledged."""
        former = self._log.barrier().registers.get(self._former, ())
        for name in former:
            # Readers take an ACK that is not beyond the last one for a rollback; this one never is. It also
            # lets them forget the producer: it is fenced, so nothing of it can follow.
            rollback = MessageUuid(ProducerId(bytes.fromhex(name)), 1, Flag.ACK)
            # Cleared with the last rollback: after a crash before it, the next claim repeats all of them.
            done = {self._former: former} if name == former[-1] else None
            self._log.append([b""], id=rollback, check=self.check, subtract=done)

    def _take(self, owner: str, fence: int, publisher: Publisher) -> None:
        while True:
            registers = self._log.barrier().registers
            current = registers.get(self._writer)
            if current is not None and int(current[0].partition(":")[0]) > fence:
                raise Fenced(
                    f"{owner!r} writes to journal {self._log.name} under fence {current[0].partition(':')[0]}, "
                    f"and this is fence {fence}: a newer run took over",
                    suggestion="if the state of the pipeline was deleted on purpose, let its writer go with "
                    f"`conduit-py journal repair {self._log.name} --release {owner}`",
                )
            # Compare and set: of two runs that claim at the same time, one appends and the other looks again.
            expected = Selector(include={self._writer: current}) if current else Selector(exclude={self._writer: ()})
            try:
                # An ACK of a producer that has published nothing yet: readers pass over it.
                ack = publisher.acknowledge()
                self._log.append([b""], id=ack, check=expected, union=self._registers(registers, current))
                return
            except RegisterMismatch:
                continue  # Another run claimed in between: look again who is newer.

    def _registers(self, registers: Registers, current: tuple[str, ...] | None) -> Labels:
        former = {*registers.get(self._former, ()), *(each.partition(":")[2] for each in current or ())}
        return {self._writer: self._value, **({self._former: sorted(former)} if former else {})}


def release_writer(log: Log, owner: str) -> bool:
    """Reset the fence of an owner to the lowest, and fence its writer. Returns False if it had none."""
    registers = log.barrier().registers
    writer = registers.get(f"writer/{owner}")
    if writer is None:
        return False
    publisher = Publisher()
    former = {*registers.get(f"former/{owner}", ()), *(each.partition(":")[2] for each in writer)}
    # The registers stay, so that the next claim rolls back what earlier runs left; but the fence is the lowest.
    union = {f"writer/{owner}": f"0:{publisher.producer.hex()}", f"former/{owner}": sorted(former)}
    log.append([b""], id=publisher.acknowledge(), union=union)
    return True


class Readable(Protocol):
    """A journal to read from: a log, or only the files of one."""

    @property
    def name(self) -> str: ...

    def reader(self, offset: int = 0) -> LogReader: ...


def read_uncommitted(log: Readable, begin: int = 0, end: int | None = None) -> Iterator[Slice]:
    """Every message that is there now, as it lies in the journal, in `[begin, end)`."""
    for frame in frames_between(log, begin, end):
        yield Slice(frame, 0, frame.count)


def frames_between(log: Readable, begin: int, end: int | None = None) -> Iterator[Frame]:
    """The frames in `[begin, end)` that are there now."""
    reader = log.reader(begin)
    try:
        while end is None or reader.offset < end:
            frame = reader.read()
            if frame is None or (end is not None and frame.begin >= end):
                return
            yield frame
    finally:
        reader.close()


class CommittedReader:
    """Reads on from a checkpoint. ACKs are not returned: they only commit other messages."""

    def __init__(self, log: Readable, checkpoint: Checkpoint | None = None, *, window: int = WINDOW) -> None:
        self.log = log
        self.sequencer = Sequencer(log.name, checkpoint, window=window)
        self._reader = log.reader(self.sequencer.offset)
        self._ahead: Slice | None = None

    @property
    def offset(self) -> int:
        """Up to where the journal was read, even if nothing there is committed yet."""
        return self._reader.offset

    def read(self) -> Slice | None:
        """The next committed messages; None when there are none yet.

        The messages returned before count as processed. Raises what reading the journal raises: see LogReader.
        """
        found, self._ahead = self._ahead or self._step(), None
        while found is None:
            frame = self._reader.read()
            if frame is None:
                return None
            self.sequencer.queue(frame)
            # The span is longer than the window: its first frames must be read again.
            if self.sequencer.replay_range is not None:
                self.sequencer.replay(frames_between(self.log, *self.sequencer.replay_range))
            found = self._step()
        return found

    def at_end_of_run(self) -> bool:
        """Whether `read` returned the last messages of their run: then the sequencer's checkpoint is past the run.

        This looks ahead, so what was returned counts as processed from here on.
        """
        if self._ahead is None:
            self._ahead = self._step()
        return self._ahead is None

    def _step(self) -> Slice | None:
        while (found := self.sequencer.step()) is not None:
            if found.frame.id.flags != _ACK:
                return found
        return None

    def close(self) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[Slice]:
        """What is committed now."""
        while (found := self.read()) is not None:
            yield found


_ACK = int(Flag.ACK)
