"""ScriptedDestination: what is durable when, in each ack mode, and how it misbehaves as scripted."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py.batch import Batch, MessageId, Span
from conduit_py.errors import FatalError, TransientError
from conduit_py.sdk import AckMode, Answer
from conduit_py.testing.event_log import EventLog, numbered_record, position_of
from conduit_py.testing.script import (
    AnswerUnknown,
    AwaitFlush,
    Block,
    Delay,
    Fail,
    OnAnswer,
    OnFlush,
    Refuse,
    RefuseOutside,
    RepeatAnswer,
)
from conduit_py.testing.scripted_destination import ScriptedDestination


async def open_destination(acks: AckMode = AckMode.WRITE, **options: Any) -> ScriptedDestination:
    destination = ScriptedDestination(acks=acks, **options)
    await destination.open()
    return destination


def batch(*numbers: int, source: str = "source") -> Batch:
    span = Span("pipeline", source, numbers[0], [position_of(number) for number in numbers])
    return Batch.whole(span, [numbered_record(number, source) for number in numbers])


def answer(number: int, refused: str | None = None) -> Answer:
    return Answer(MessageId("source", number), refused)


async def test_write_mode_keeps_records_at_once_and_in_order(autojump_clock: MockClock) -> None:
    destination = await open_destination()

    assert await destination.write(batch(0, 1)) is None
    assert await destination.write(batch(2)) is None

    assert destination.log.numbers() == [0, 1, 2]


async def test_flush_mode_keeps_records_at_the_flush(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.FLUSH)

    await destination.write(batch(0, 1))
    assert destination.log.numbers() == []
    await destination.flush()

    assert destination.log.numbers() == [0, 1]


async def test_what_was_not_flushed_dies_with_the_run(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.FLUSH)
    await destination.write(batch(0))

    again = destination.fresh()
    assert isinstance(again, ScriptedDestination)
    await again.open()
    await again.write(batch(1))
    await again.flush()

    assert again.log.numbers() == [1]


async def test_later_mode_keeps_records_with_their_answers(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER)

    await destination.write(batch(0, 1))
    assert destination.log.numbers() == []

    assert await destination.answers() == [answer(0), answer(1)]
    assert destination.log.numbers() == [0, 1]


@pytest.mark.parametrize("mode", [AckMode.WRITE, AckMode.FLUSH])
async def test_refused_records_are_named_and_not_kept(mode: AckMode, autojump_clock: MockClock) -> None:
    destination = await open_destination(mode, script={1: Refuse("too big")})

    assert await destination.write(batch(0, 1, 2)) == {1: "too big"}
    await destination.flush()

    assert destination.log.numbers() == [0, 2]


async def test_later_refusals_are_answers(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={1: Refuse("too big")})

    assert await destination.write(batch(0, 1)) is None
    assert await destination.answers() == [answer(0), answer(1, "too big")]
    assert destination.log.numbers() == [0]


async def test_a_failing_write_has_stored_what_came_before(autojump_clock: MockClock) -> None:
    destination = await open_destination(script={1: Fail("disk full")})

    with pytest.raises(TransientError, match="disk full"):
        await destination.write(batch(0, 1, 2))
    assert destination.log.numbers() == [0]
    await destination.write(batch(0, 1, 2))

    assert destination.log.numbers() == [0, 0, 1, 2]


async def test_delays_and_blocks(autojump_clock: MockClock) -> None:
    destination = await open_destination(script={0: Delay(3), 1: Block()})

    with trio.move_on_after(10) as scope:
        await destination.write(batch(0, 1))

    assert scope.cancelled_caught
    assert [event.at for event in destination.log.did("store")] == [3]


async def test_a_failing_flush_keeps_the_rest_for_the_next(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.FLUSH, script={1: OnFlush(Fail(error=FatalError))})
    await destination.write(batch(0, 1, 2))

    with pytest.raises(FatalError):
        await destination.flush()
    assert destination.log.numbers() == [0]
    await destination.flush()
    assert destination.log.numbers() == [0, 1, 2]


async def test_answers_come_when_they_are_due(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={0: OnAnswer(Delay(5)), 1: OnAnswer(Delay(2))})
    await destination.write(batch(0, 1, 2, 3))

    assert await destination.answers() == [answer(2), answer(3)]
    assert (await destination.answers(), trio.current_time()) == ([answer(1)], 2)
    assert (await destination.answers(), trio.current_time()) == ([answer(0)], 5)


async def test_answers_come_in_chunks(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, answer_chunks=[1, 3])
    await destination.write(batch(0, 1, 2, 3, 4))

    assert [len(await destination.answers()) for _ in range(3)] == [1, 3, 1]


async def test_answers_that_never_come(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={0: OnAnswer(Block())})
    await destination.write(batch(0))

    with trio.move_on_after(1e6) as scope:
        await destination.answers()
    assert scope.cancelled_caught


async def test_waiting_answers_notice_a_later_write(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER)
    async with trio.open_nursery() as nursery:

        async def write_later() -> None:
            await trio.sleep(4)
            await destination.write(batch(0))

        nursery.start_soon(write_later)
        assert await destination.answers() == [answer(0)]
    assert trio.current_time() == 4


async def test_answers_that_wait_for_the_flush(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={0: OnAnswer(AwaitFlush())})
    await destination.write(batch(0, 1))

    assert await destination.answers() == [answer(1)]
    await destination.flush()
    assert await destination.answers() == [answer(0)]


async def test_a_failing_later_write_answers_nothing(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={1: Fail()})

    with pytest.raises(TransientError):
        await destination.write(batch(0, 1))
    await destination.write(batch(0, 1))

    assert await destination.answers() == [answer(0), answer(1)]


async def test_early_answers_come_before_their_write_returns(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={1: Delay(9)}, answers_early=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(destination.write, batch(0, 1))
        assert (await destination.answers(), trio.current_time()) == ([answer(0)], 0)


async def test_answers_can_crash_while_some_are_outstanding(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={0: OnAnswer(Fail("connection lost"))})
    await destination.write(batch(0, 1))

    with pytest.raises(TransientError, match="connection lost"):
        await destination.answers()
    assert destination.log.numbers() == []


async def test_broken_contracts(autojump_clock: MockClock) -> None:
    outside = await open_destination(script={0: RefuseOutside()})
    assert await outside.write(batch(0, 1)) == {2: "scripted refusal of nothing"}

    later = await open_destination(AckMode.LATER, script={0: OnAnswer(RepeatAnswer()), 1: OnAnswer(AnswerUnknown())})
    await later.write(batch(0, 1))
    assert await later.answers() == [answer(0), answer(0), answer(1), answer(10**9)]


async def test_deliveries_name_their_source_and_key(autojump_clock: MockClock) -> None:
    log = EventLog()
    destination = await open_destination(name="lake", log=log)
    await destination.write(batch(0, source="a"))
    await destination.write(batch(0, 1, source="b"))

    assert [delivery.label for delivery in log.stored["lake"]] == ["a:0", "b:0", "b:1"]
    assert log.numbers("lake", source="b") == [0, 1]
    assert len({delivery.key for delivery in log.stored["lake"]}) == 3


async def test_kept_records_are_copies(autojump_clock: MockClock) -> None:
    destination = await open_destination()
    written = batch(0)
    await destination.write(written)
    written[0].payload["n"] = 99

    assert destination.log.numbers() == [0]


async def test_calls_out_of_turn_are_violations(autojump_clock: MockClock) -> None:
    destination = await open_destination(AckMode.LATER, script={0: Delay(1)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(destination.write, batch(0))
        await trio.testing.wait_all_tasks_blocked()
        await destination.flush()
        nursery.start_soon(destination.answers)
        await trio.testing.wait_all_tasks_blocked()
        await destination.teardown()
    await destination.write(batch(1))

    assert destination.log.violations == [
        "destination: flush was called while write was running",
        "destination: teardown was called while write, answers was running",
        "destination: write was called after teardown",
    ]
