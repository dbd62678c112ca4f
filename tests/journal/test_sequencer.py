"""The sequencer against its vectors GZ-S1 to GZ-S11 and GZ-S13 of reference B.2.4."""

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_py.journal.frame import Frame, pack_bodies
from conduit_py.journal.message_id import Flag, MessageUuid, ProducerId
from conduit_py.journal.sequencer import NONE, Checkpoint, ReplayInvalid, Sequencer
from tests.journal.vector_log import JOURNAL, FrameOutcome, VectorLog, committed, drain, states, steps

VECTORS = json.loads((Path(__file__).parent / "vectors" / "gazette_sequencer.json").read_text())["vectors"]
NAMES = {
    "txn-cases": "GZ-S1",
    "no-window": "GZ-S2",
    "outside-cases": "GZ-S3",
    "checkpoint-round-trip": "GZ-S4",
    "pruning": "GZ-S7",
    "replay-errors": "GZ-S8",
    "publisher-reader-integration": "GZ-S10",
    "read-iterators": "GZ-S11",
    "pipelining-hazard": "GZ-S13",
}


class Play:
    """Plays the steps of a vector on one sequencer, or on one and its recovered copy."""

    def __init__(self, window: int) -> None:
        self.log = VectorLog()
        self.on = {"original": Sequencer(JOURNAL, window=window)}
        self.checkpoint = Checkpoint()

    def step(self, step: dict[str, Any]) -> None:
        if "fork" in step:
            self.on[step["fork"]] = Sequencer(JOURNAL, self.checkpoint, window=step["window"])
            return
        target = step.get("on", "original")
        for sequencer in self.on.values() if target == "both" else [self.on[target]]:
            self.check(sequencer, step)

    def check(self, sequencer: Sequencer, step: dict[str, Any]) -> None:
        if "queue" in step:
            assert sequencer.queue(self.log.add(step["queue"])) is FrameOutcome(step["outcome"]), step
        if "replay_faults" in step:
            assert sequencer.replay_range == self.range(step)
        if "drain" in step:
            assert sequencer.replay_range == self.range(step), step
            assert drain(sequencer, self.log) == step["drain"]
        if "expect_pending" in step:
            assert sequencer.pending is step["expect_pending"]
        if "expect_offset" in step:
            assert sequencer.offset == self.log.frames[step["expect_offset"]].end
        if "expect_state" in step:
            self.check_states(sequencer, step["expect_state"])
        if "checkpoint" in step:
            self.check_checkpoint(sequencer, step)

    def range(self, step: dict[str, Any]) -> tuple[int, int] | None:
        if "replay_range" not in step:
            return None
        begin, end = (self.log.frames[name].begin for name in step["replay_range"])
        return begin, end

    def check_states(self, sequencer: Sequencer, expected: dict[str, list[Any]]) -> None:
        assert states(sequencer, self.log) == {name: (ack, begin) for name, (ack, _, begin) in expected.items()}
        maxima = {id[-1:].decode(): each.max_clock for id, each in sequencer._producers.items()}
        assert maxima == {name: clock for name, (_, clock, _) in expected.items()}

    def check_checkpoint(self, sequencer: Sequencer, step: dict[str, Any]) -> None:
        self.checkpoint = sequencer.checkpoint(step.get("horizon_100ns"))
        assert states(sequencer, self.log) == {name: tuple(state) for name, state in step["checkpoint"].items()}
        if "offset" in step:
            assert self.checkpoint.offset == self.log.frames[step["offset"]].end


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{NAMES[vector['name']]}-{vector['name']}")
def test_vector(vector: dict[str, Any]) -> None:
    play = Play(vector["window"])
    for step in vector["steps"]:
        play.step(step)


def test_gz_s5_a_checkpoint_inside_a_run_resumes_at_what_was_not_stepped_past() -> None:
    log, sequencer = VectorLog(), Sequencer(JOURNAL)
    tokens = ["a1=A:1C", "a2=A:2C", "a3=A:3A"]
    for token in tokens:
        sequencer.queue(log.add(token))
    assert next(steps(sequencer)) == "a1"
    first = sequencer.checkpoint()

    assert states(sequencer, log) == {"A": (0, "a1")}
    assert first.offset == log.frames["a2"].end
    assert committed(Sequencer(JOURNAL, first), log, ["a3=A:3A"]) == ["a1", "a2", "a3"]

    assert list(steps(sequencer)) == ["a2", "a3"]
    for token in ["a4=A:4C", "a5=A:5C", "a6=A:6A"]:
        sequencer.queue(log.add(token))
    run = steps(sequencer)
    assert [next(run), next(run)] == ["a4", "a5"]
    second = sequencer.checkpoint()

    assert states(sequencer, log) == {"A": (4, "a5")}
    assert committed(Sequencer(JOURNAL, second), log, ["a6=A:6A"]) == ["a5", "a6"]


def test_gz_s6_duplicates_that_straddle_a_checkpoint_are_delivered_once() -> None:
    log, original = VectorLog(), Sequencer(JOURNAL)
    for token in ["a1=A:1C", "a2=A:2C", "a3=A:3C"]:
        original.queue(log.add(token))
    restored = Sequencer(JOURNAL, original.checkpoint())
    again = ["a1d=A:1C", "a2d=A:2C", "a3d=A:3C", "a4=A:4A"]

    seen = [original.queue(log.add(token)) for token in again]
    assert seen == [FrameOutcome.CONTINUE_DUPLICATE] * 3 + [FrameOutcome.ACK_COMMIT_WINDOW]
    assert drain(original, log) == ["a1", "a2", "a3", "a4"]

    seen = [restored.queue(log.add(token)) for token in again]
    assert seen == [FrameOutcome.CONTINUE_EXTEND] * 3 + [FrameOutcome.ACK_COMMIT_REPLAY]
    assert restored.replay_range == (log.frames["a1"].begin, log.frames["a1d"].begin)
    assert drain(restored, log) == ["a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(
    ("journal", "shift_begin", "shift_end", "message"),
    [
        ("another", 0, 0, "of journal 'another'"),
        (JOURNAL, -1, 0, "begins at 101, before 102"),
        (JOURNAL, 0, 100, "ends at 302, past 204"),
    ],
)
def test_gz_s8_a_replay_of_anything_else_is_refused(
    journal: str, shift_begin: int, shift_end: int, message: str
) -> None:
    log, sequencer = VectorLog(), Sequencer(JOURNAL, window=0)
    for token in ["b1=B:1C", "a2=A:2C", "a3=A:3A"]:
        sequencer.queue(log.add(token))
    asked = log.frames["a2"]
    given = Frame(journal, asked.begin + shift_begin, asked.end + shift_end, asked.id, 1, pack_bodies([b"a2"]))

    sequencer.replay([given])
    with pytest.raises(ReplayInvalid, match=message):
        sequencer.step()


def test_gz_s8_an_error_of_the_replay_itself_is_passed_through() -> None:
    def failing() -> Any:
        raise OSError("disk on fire")
        yield

    log, sequencer = VectorLog(), Sequencer(JOURNAL, window=0)
    for token in ["b1=B:1C", "a2=A:2C", "a3=A:3A"]:
        sequencer.queue(log.add(token))

    sequencer.replay(failing())
    with pytest.raises(OSError, match="disk on fire"):
        sequencer.step()


def test_gz_s9_eviction_never_loses_where_a_span_begins() -> None:
    log, sequencer = VectorLog(), Sequencer(JOURNAL, window=5)
    tokens = ["e1=A:1C", "e2=B:1C", "e3=A:2C", "e4=A:3C", "e5=B:2C", "e6=B:3C", "e7=B:4C", "e8=B:5C", "e9=B:6C"]
    for token in tokens[:8]:
        sequencer.queue(log.add(token))
    a = sequencer._producers[log.frames["e1"].id.producer]
    assert [frame.bodies for frame in a.span] == [[b"e4"]]
    sequencer.queue(log.add(tokens[8]))
    assert not a.span
    assert states(sequencer, log) == {"A": (0, "e1"), "B": (0, "e2")}

    assert committed(sequencer, log, ["a4=A:4A", "b7=B:7A"]) == ["e1", "e3", "e4", "a4", *tokens_of("B", tokens), "b7"]


def tokens_of(producer: str, tokens: list[str]) -> list[str]:
    return [token.partition("=")[0] for token in tokens if f"={producer}:" in token]


def batch(begin: int, clock: int, count: int, flag: Flag) -> Frame:
    bodies = [b"%d" % (clock + 160 * i) for i in range(count)]
    id = MessageUuid(ProducerId(b"\x01prod."), clock, flag)
    return Frame(JOURNAL, begin, begin + 100, id, count, pack_bodies(bodies))


def test_a_frame_of_many_messages_is_cut_where_an_ack_or_a_repetition_cuts_it() -> None:
    sequencer = Sequencer(JOURNAL)
    assert sequencer.queue(batch(0, 160, 4, Flag.CONTINUE)) is FrameOutcome.CONTINUE_BEGIN
    assert sequencer.queue(batch(100, 480, 4, Flag.CONTINUE)) is FrameOutcome.CONTINUE_EXTEND
    assert sequencer.queue(batch(200, 800, 1, Flag.ACK)) is FrameOutcome.ACK_COMMIT_WINDOW

    # Of the second frame 480 and 640 are repeated, 960 is beyond the ACK.
    assert list(steps(sequencer)) == ["160", "320", "480", "640", "800"]
    assert sequencer.producers()[0].last_ack == 800
    assert sequencer.producers()[0].begin == NONE


def test_the_window_is_bounded_in_bytes_too() -> None:
    sequencer = Sequencer(JOURNAL, window_bytes=30)
    for number in range(10):
        sequencer.queue(batch(100 * number, 160 * (number + 1), 1, Flag.CONTINUE))
    assert sequencer.queue(batch(1000, 1760, 1, Flag.ACK)) is FrameOutcome.ACK_COMMIT_REPLAY
    assert sequencer.replay_range is not None
    assert sequencer.replay_range[0] == 0


def test_queueing_while_a_run_is_drained_is_an_error_of_the_program() -> None:
    log, sequencer = VectorLog(), Sequencer(JOURNAL)
    sequencer.queue(log.add("a1=A:1O"))

    with pytest.raises(AssertionError, match="not drained"):
        sequencer.queue(log.add("a2=A:2O"))
