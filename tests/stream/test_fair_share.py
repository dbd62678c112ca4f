"""Batches are smaller while a round of all tasks takes long: then the API and other pipelines wait for their turn."""

import trio
from trio.testing import MockClock

from conduit_py.sdk import Payloads, Reading
from conduit_py.stream.reader import ReadBuffer
from conduit_py.stream.signal import TURN_SECONDS, FairShare, Signal

SIZE = 1024


def endless_buffer() -> ReadBuffer:
    """A buffer whose source gives as much as there is room for."""
    buffer = ReadBuffer(SIZE, Signal())

    def pull() -> None:
        payloads = [{"n": number} for number in range(buffer.room)]
        buffer.put(Reading(Payloads(payloads, [b"p"] * len(payloads), dict)), len(payloads))

    buffer.pull = pull
    return buffer


async def batch_sizes(buffer: ReadBuffer, clock: MockClock, round_seconds: float, count: int) -> list[int]:
    """The sizes of batches that are taken while the other tasks take this long in each round."""
    sizes = []

    async def others() -> None:
        while True:
            clock.jump(round_seconds)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        for _ in range(count):
            taken = await buffer.take()
            assert taken is not None
            sizes.append(len(taken[0].records))
            clock.jump(2 * TURN_SECONDS)
        nursery.cancel_scope.cancel()
    return sizes


async def test_a_batch_is_whole_while_rounds_are_short(mock_clock: MockClock) -> None:
    assert await batch_sizes(endless_buffer(), mock_clock, 0.01, 20) == [SIZE] * 20


async def test_batches_shrink_in_long_rounds_and_grow_when_others_are_done(mock_clock: MockClock) -> None:
    buffer = endless_buffer()
    long = await batch_sizes(buffer, mock_clock, 0.5, 60)
    short = await batch_sizes(buffer, mock_clock, 0.01, 60)

    assert min(long) == FairShare.RECORDS_MIN
    assert sum(long) < 10 * SIZE
    assert short == sorted(short)
    assert short[-1] == SIZE


async def test_the_share_stays_between_short_and_long_rounds() -> None:
    share = FairShare()
    share.note_round(0.5, SIZE)
    changed = [share.note_round(seconds, SIZE) for seconds in (0.01, 0.05) * 50]

    # Halved and doubled in turn, rounds would be long and short in turn.
    assert (share.records, any(changed)) == (SIZE // 2, False)
