"""Batches are smaller while a round of all tasks takes long: then the API and other pipelines wait for their turn."""

from itertools import count

from conduit_py.sdk import Payloads, Reading
from conduit_py.stream.reader import ReadBuffer
from conduit_py.stream.signal import FairShare, Signal

SIZE = 1024
LONG, SHORT = 0.5, 0.01


def endless_buffer() -> ReadBuffer:
    """A buffer whose source gives as much as there is room for."""
    buffer = ReadBuffer(SIZE, Signal())

    def pull() -> None:
        payloads = [{"n": number} for number in range(buffer.room)]
        buffer.put(Reading(Payloads(payloads, [b"p"] * len(payloads), dict)), len(payloads))

    buffer.pull = pull
    return buffer


async def batch_sizes(buffer: ReadBuffer, round_seconds: float, batches: int) -> list[int]:
    """The sizes of batches that are taken while the clock goes on by so much between two looks at it."""
    looks = count()
    buffer.clock = lambda: next(looks) * round_seconds
    buffer.turn_ends_at = float("-inf")
    sizes = []
    for _ in range(batches):
        taken = await buffer.take()
        assert taken is not None
        sizes.append(len(taken[0].records))
    return sizes


async def test_a_batch_is_whole_while_rounds_are_short() -> None:
    assert await batch_sizes(endless_buffer(), SHORT, 20) == [SIZE] * 20


async def test_batches_shrink_in_long_rounds_and_grow_when_others_are_done() -> None:
    buffer = endless_buffer()
    long = await batch_sizes(buffer, LONG, 20)
    short = await batch_sizes(buffer, SHORT, 60)

    assert long == sorted(long, reverse=True)
    assert long[-1] == FairShare.RECORDS_MIN
    assert short == sorted(short)
    assert short[-1] == SIZE


def test_the_share_stays_if_rounds_are_neither_long_nor_short() -> None:
    share = FairShare()
    for seconds in (LONG,) * FairShare.LONG_ROUNDS + (SHORT, 0.05) * 50:
        share.note_round(seconds, SIZE)

    # Halved and doubled in turn, rounds would be long and short in turn.
    assert share.records == SIZE // 2


def test_a_long_round_now_and_then_changes_nothing() -> None:
    share = FairShare()

    assert not any(share.note_round(seconds, SIZE) for seconds in (LONG, LONG, SHORT) * 50)


def test_a_batch_that_is_small_anyway_stays_as_it_is() -> None:
    share = FairShare()
    for _ in range(100):
        share.note_round(LONG, 10)

    assert share.records >= 10
