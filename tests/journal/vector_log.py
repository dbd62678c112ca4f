"""A journal written down as tokens, `a1=A:1C`: message a1 of producer A at clock 1, CONTINUE. For vectors."""

import re
from collections.abc import Iterable, Iterator

from conduit_py.journal.frame import Frame, pack_bodies
from conduit_py.journal.message_id import NO_ID, MessageUuid, ProducerId
from conduit_py.journal.sequencer import NONE, FrameOutcome, Sequencer

JOURNAL = "vectors"
TOKEN = re.compile(r"(\w+)=(\w):(\d+)(C|A|O|x[0-9a-f]+)")
FLAGS = {"O": 0, "C": 1, "A": 2}


class VectorLog:
    """Message i, by first mention, lies at `[102 * i, 102 * i + 100)`."""

    def __init__(self) -> None:
        self.frames: dict[str, Frame] = {}

    def add(self, token: str) -> Frame:
        """The frame of a token, the same one each time it is mentioned."""
        found = TOKEN.fullmatch(token)
        assert found is not None, token
        name, producer, clock, flag = found.groups()
        if name not in self.frames:
            begin = 102 * len(self.frames)
            flags = FLAGS[flag] if flag in FLAGS else int(flag[1:], 16)
            id = NO_ID if producer == "0" else MessageUuid(producer_id(producer), int(clock), flags)
            self.frames[name] = Frame(JOURNAL, begin, begin + 100, id, 1, pack_bodies([name.encode()]))
        return self.frames[name]

    def between(self, begin: int, end: int) -> Iterator[Frame]:
        return iter([frame for frame in self.frames.values() if begin <= frame.begin and frame.end <= end])

    def name_at(self, begin: int) -> str | None:
        return next((name for name, frame in self.frames.items() if frame.begin == begin), None)


def producer_id(letter: str) -> ProducerId:
    return ProducerId(b"\x01\x00\x00\x00\x00" + letter.encode())


def drain(sequencer: Sequencer, log: VectorLog) -> list[str]:
    """The names of the messages of a run, with a replay where one is asked for."""
    if sequencer.replay_range is not None:
        sequencer.replay(log.between(*sequencer.replay_range))
    return list(steps(sequencer))


def steps(sequencer: Sequencer) -> Iterator[str]:
    while (found := sequencer.step()) is not None:
        for body in found.frame.bodies[found.first : found.stop]:
            yield body.decode()


def committed(sequencer: Sequencer, log: VectorLog, tokens: Iterable[str]) -> list[str]:
    """What is delivered when these are queued one after another."""
    delivered: list[str] = []
    for token in tokens:
        sequencer.queue(log.add(token))
        delivered += drain(sequencer, log)
    return delivered


def states(sequencer: Sequencer, log: VectorLog) -> dict[str, tuple[int, str | None]]:
    """Producer → last acknowledged clock and name of the message at which its open span begins."""
    return {
        each.producer[-1:].decode(): (each.last_ack, None if each.begin == NONE else log.name_at(each.begin))
        for each in sequencer.producers()
    }


__all__ = ["JOURNAL", "FrameOutcome", "VectorLog", "committed", "drain", "producer_id", "states", "steps"]
