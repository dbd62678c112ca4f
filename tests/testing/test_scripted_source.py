"""ScriptedSource: it misbehaves exactly as scripted, resumes anywhere, and watches the runtime."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet, Reading
from conduit_py.testing.event_log import EventLog
from conduit_py.testing.script import (
    Block,
    Delay,
    EmptyPosition,
    Fail,
    Idle,
    OnAck,
    Refuse,
    RepeatPosition,
    ReturnNothing,
    ReturnTooMany,
)
from conduit_py.testing.scripted_source import ScriptedSource, StoppableSource


async def open_source(position: bytes | None = None, /, **options: Any) -> ScriptedSource:
    source = ScriptedSource(**options)
    await source.open(position)
    return source


def positions(read: list[Record] | Reading) -> list[bytes]:
    return [record.position for record in (read.records if isinstance(read, Reading) else read)]


async def test_reads_all_records_in_order_then_ends_again_and_again(autojump_clock: MockClock) -> None:
    source = await open_source(records=5)

    assert positions(await source.read(3)) == [b"0", b"1", b"2"]
    assert positions(await source.read(3)) == [b"3", b"4"]
    for _ in range(2):
        with pytest.raises(EndOfSource):
            await source.read(3)


async def test_own_records_keep_their_data_and_get_positions(autojump_clock: MockClock) -> None:
    source = await open_source(records=[Record.of(b"a"), Record.of({"x": 1})])

    read = await source.read(9)

    assert isinstance(read, list)
    assert [(record.position, record.payload.after) for record in read] == [(b"0", b"a"), (b"1", {"x": 1})]


@pytest.mark.parametrize("after", range(5))
async def test_resumes_exactly_after_any_position(after: int, autojump_clock: MockClock) -> None:
    source = await open_source(b"%d" % after, records=6)

    assert positions(await source.read(9)) == [b"%d" % number for number in range(after + 1, 6)]


async def test_chunks_come_in_turn(autojump_clock: MockClock) -> None:
    source = await open_source(records=7, chunks=[1, 2])

    assert [len(positions(await source.read(9))) for _ in range(5)] == [1, 2, 1, 2, 1]


async def test_a_delay_holds_back_its_record_but_not_those_before(autojump_clock: MockClock) -> None:
    source = await open_source(records=4, script={2: Delay(5)})

    assert positions(await source.read(9)) == [b"0", b"1"]
    assert trio.current_time() == 0
    assert positions(await source.read(9)) == [b"2", b"3"]
    assert trio.current_time() == 5


async def test_a_cancelled_read_loses_nothing(autojump_clock: MockClock) -> None:
    source = await open_source(records=2, script={0: Delay(5)})

    with trio.move_on_after(1) as scope:
        await source.read(9)
    assert scope.cancelled_caught
    assert positions(await source.read(9)) == [b"0", b"1"]


async def test_a_shielded_delay_ignores_cancellation(autojump_clock: MockClock) -> None:
    source = await open_source(records=1, script={0: Delay(5, shielded=True)})

    with trio.move_on_after(1):
        await source.read(9)
    assert trio.current_time() == 5


async def test_a_failure_happens_once_over_all_runs(autojump_clock: MockClock) -> None:
    source = await open_source(records=3, script={1: Fail("link down")})
    assert positions(await source.read(9)) == [b"0"]
    with pytest.raises(TransientError, match="link down"):
        await source.read(9)

    again = source.fresh()
    assert isinstance(again, ScriptedSource)
    await again.open(b"0")

    assert positions(await again.read(9)) == [b"1", b"2"]


async def test_a_failure_without_times_is_for_ever(autojump_clock: MockClock) -> None:
    source = await open_source(records=1, script={0: Fail(error=FatalError, times=None)})

    for _ in range(3):
        with pytest.raises(FatalError):
            await source.read(9)


async def test_blocks_for_ever(autojump_clock: MockClock) -> None:
    source = await open_source(records=1, script={0: Block()})

    with trio.move_on_after(1e6) as scope:
        await source.read(1)
    assert scope.cancelled_caught


async def test_nothing_yet_as_often_as_scripted(autojump_clock: MockClock) -> None:
    source = await open_source(records=1, script={0: Idle(2)})

    for _ in range(2):
        with pytest.raises(NothingYet):
            await source.read(1)
    assert positions(await source.read(1)) == [b"0"]


async def test_refused_records_are_read_with_their_reason(autojump_clock: MockClock) -> None:
    source = await open_source(records=3, script={1: Refuse("not JSON")})

    read = await source.read(9)

    assert isinstance(read, Reading)
    assert (positions(read), read.refused) == ([b"0", b"1", b"2"], {1: "not JSON"})


async def test_an_unbounded_source_waits_for_ever(autojump_clock: MockClock) -> None:
    source = await open_source(records=0, bounded=False)

    with trio.move_on_after(1e6) as scope:
        await source.read(1)
    assert scope.cancelled_caught


@pytest.mark.parametrize("options", [{"records": 0, "bounded": False}, {"records": 1, "script": {0: Delay(99)}}])
async def test_a_stop_ends_a_waiting_read(options: dict[str, Any], autojump_clock: MockClock) -> None:
    source = StoppableSource(**options)
    await source.open(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later, 7, source.stop)
        with pytest.raises(EndOfSource):
            await source.read(1)

    assert trio.current_time() == 7
    with pytest.raises(EndOfSource):
        await source.read(1)


async def test_a_stuck_read_ignores_a_stop(autojump_clock: MockClock) -> None:
    source = StoppableSource(records=1, script={0: Block()})
    await source.open(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later, 7, source.stop)
        with trio.move_on_after(100) as scope:
            await source.read(1)
    assert scope.cancelled_caught


async def test_a_stop_can_be_stuck_itself(autojump_clock: MockClock) -> None:
    source = StoppableSource(at_stop=Block())
    await source.open(None)

    with trio.move_on_after(100) as scope:
        await source.stop()
    assert scope.cancelled_caught


async def later(seconds: float, call: Callable[[], Awaitable[None]]) -> None:
    await trio.sleep(seconds)
    await call()


async def test_broken_contracts(autojump_clock: MockClock) -> None:
    assert positions(await (await open_source(records=2, script={0: ReturnNothing()})).read(2)) == []
    assert len(positions(await (await open_source(records=2, script={0: ReturnTooMany()})).read(4))) == 5
    assert positions(await (await open_source(records=2, script={1: RepeatPosition()})).read(2)) == [b"0", b"0"]
    assert positions(await (await open_source(records=2, script={1: EmptyPosition()})).read(2)) == [b"0", b""]


async def test_acks_are_kept_in_order_and_fail_as_scripted(autojump_clock: MockClock) -> None:
    source = await open_source(records=3, script={1: OnAck(Fail("gone"))})
    await source.read(3)

    with pytest.raises(TransientError, match="gone"):
        await source.ack([b"0", b"1"])
    assert source.log.acked["source"] == [b"0"]
    await source.ack([b"1", b"2"])
    assert source.log.acked["source"] == [b"0", b"1", b"2"]
    source.log.check()


async def test_a_pruned_record_is_gone_for_ever(autojump_clock: MockClock) -> None:
    source = await open_source(records=3, prunes=True)
    await source.read(3)
    await source.ack([b"0", b"1"])

    again = source.fresh()
    assert isinstance(again, ScriptedSource)
    await again.open(b"1")
    assert positions(await again.read(3)) == [b"2"]
    with pytest.raises(FatalError, match="asked for record 1, but all before 2 were acked and are gone"):
        await source.fresh().open(b"0")


async def test_acks_out_of_order_unknown_or_twice_are_violations(autojump_clock: MockClock) -> None:
    source = await open_source(records=3)
    await source.read(2)

    await source.ack([b"1"])
    await source.ack([b"0", b"0"])
    await source.ack([b"9"])

    assert source.log.violations == [
        "source: 1 was acked when 0 was due",
        "source: 0 was acked when nothing was due",
        "source: 9 was acked when nothing was due",
    ]
    with pytest.raises(AssertionError, match="broke the SDK's promises"):
        source.log.check()


async def test_calls_out_of_turn_are_violations(autojump_clock: MockClock) -> None:
    source = await open_source(records=3, script={0: Delay(1)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.read, 1)
        await trio.testing.wait_all_tasks_blocked()
        await source.read(1)
    await source.teardown()
    await source.ack([b"0"])
    await source.teardown()

    assert source.log.violations == [
        "source: read was called while read was running",
        "source: ack was called after teardown",
        "source: teardown was called after teardown",
    ]


async def test_a_failed_open_is_followed_by_teardown_only(autojump_clock: MockClock) -> None:
    source = ScriptedSource(at_open=Fail("no such table", FatalError))
    with pytest.raises(FatalError, match="no such table"):
        await source.open(None)
    await source.teardown()
    assert source.log.violations == []


async def test_reading_after_a_failed_open_is_a_violation(autojump_clock: MockClock) -> None:
    source = ScriptedSource(at_open=Fail("no such table", FatalError))
    with pytest.raises(FatalError):
        await source.open(None)
    await source.read(1)
    assert source.log.violations == ["source: read was called before open had returned"]


async def test_the_log_tells_what_happened_when(autojump_clock: MockClock) -> None:
    log = EventLog()
    source = await open_source(b"0", records=3, name="web", script={2: Delay(1.5)}, log=log)
    await source.read(9)
    await source.read(9)
    await source.ack([b"1"])
    await source.teardown()

    assert log.trace() == [
        "0 web open 0",
        "0 web read 1",
        "1.5 web read 2",
        "1.5 web ack 1",
        "1.5 web teardown",
    ]
    assert [event.at for event in log.did("read")] == [0, 1.5]
