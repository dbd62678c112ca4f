"""JournalPosition: where a reader of a journal continues, exactly, also inside a committed transaction."""

import struct

from conduit_py.journal import NONE, TICK, Checkpoint, Flag, ProducerId, ProducerState, Sequencer, Slice
from conduit_py.sdk import foreign_position

_MAGIC = b"journal:1:"
_HEAD = struct.Struct(">16sQI")
_PRODUCER = struct.Struct(">6sqQ")


class JournalPosition:
    """A checkpoint of the sequencer in the journal `id`, and how many messages to skip in the next frame."""

    __slots__ = ("checkpoint", "id", "skip")

    def __init__(self, id: str, checkpoint: Checkpoint, skip: int = 0) -> None:
        self.id = id
        self.checkpoint = checkpoint
        self.skip = skip

    def encode(self) -> bytes:
        head = _MAGIC + _HEAD.pack(self.id.encode(), self.checkpoint.offset, self.skip)
        return head + b"".join(_producer(each) for each in self.checkpoint.producers)

    @classmethod
    def decode(cls, raw: bytes) -> "JournalPosition":
        size = len(raw) - len(_MAGIC) - _HEAD.size
        if not raw.startswith(_MAGIC) or size < 0 or size % _PRODUCER.size:
            raise foreign_position(raw, "the journal source")
        id, offset, skip = _HEAD.unpack_from(raw, len(_MAGIC))
        producers = tuple(
            ProducerState(ProducerId(producer), last_ack, begin)
            for producer, begin, last_ack in _PRODUCER.iter_unpack(raw[len(_MAGIC) + _HEAD.size :])
        )
        return cls(id.decode(), Checkpoint(offset, producers), skip)


def positions_inside(id: str, sequencer: Sequencer, found: Slice) -> list[bytes]:
    """Return a position for each of these messages of a run that is being drained.

    They differ only in the clock up to which the producer counts as acknowledged, which is encoded last.
    """
    frame = found.frame
    producer, first, flags = frame.id
    others = tuple(each for each in sequencer.producers() if each.producer != producer)
    prefix = JournalPosition(id, Checkpoint(sequencer.offset, others)).encode()
    begin = frame.begin if flags == Flag.CONTINUE else NONE
    prefix += _PRODUCER.pack(producer, begin, 0)[:-8]
    clocks = range(first + found.first * TICK, first + found.stop * TICK, TICK)
    return [prefix + clock.to_bytes(8, "big") for clock in clocks]


def positions_by_number(id: str, checkpoint: Checkpoint, found: Slice) -> list[bytes]:
    """Return a position for each of these messages, which have no ids, or whose ids are not used."""
    inside = Checkpoint(found.frame.begin, checkpoint.producers)
    return [JournalPosition(id, inside, number + 1).encode() for number in range(found.first, found.stop)]


def _producer(state: ProducerState) -> bytes:
    return _PRODUCER.pack(state.producer, state.begin, state.last_ack)
