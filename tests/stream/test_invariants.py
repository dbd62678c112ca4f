"""Each invariant of the contract, attacked under many schedules: safety and progress."""

import itertools
from collections.abc import Sequence
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Recovery, Source, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Block,
    Delay,
    EventLog,
    Fail,
    OnAck,
    OnAnswer,
    OutageStore,
    Refuse,
    ScriptedDestination,
    ScriptedSource,
    ScriptStep,
    run_with_outage,
    simulate,
    simulated,
)

QUICK = Recovery(delay_seconds=0.01, delay_max_seconds=0.01, retries=20)


def pipeline(
    log: EventLog,
    *,
    records: int = 20,
    processors: Sequence[Any] = (),
    source: dict[str, Any] | None = None,
    destinations: dict[str, dict[str, Any]] | None = None,
    dead_letters: DeadLetters | None = None,
    batch_size: int = 7,
    window: int = 16,
    stop_seconds: float = 30.0,
) -> Pipeline:
    """source → processors → destinations, on scripted ends that share a log."""
    ends = destinations or {"destination": {}}
    return Pipeline(
        "p",
        sources=[
            Source(
                "source",
                ScriptedSource(records=records, log=log, **(source or {})),
                batch_size=batch_size,
                window=window,
            )
        ],
        processors=processors,
        destinations=[Destination(id, ScriptedDestination(name=id, log=log, **each)) for id, each in ends.items()],
        dead_letters=dead_letters,
        stop_seconds=stop_seconds,
    )


def numbers(count: int, *, but: Sequence[int] = ()) -> list[int]:
    return [number for number in range(count) if number not in but]


def positions(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def first_occurrences(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


LATE = {number: OnAnswer(Delay((number * 7) % 5)) for number in range(40)}
"""Answers that overtake each other."""


@simulated(seeds=range(30))
async def test_invariant_1_order_is_kept_through_workers_splits_and_every_kind_of_ack(seed: int) -> None:
    log = EventLog()

    async def jitter(record: Record) -> list[Record] | Record:
        await trio.sleep((record.payload["n"] * 13) % 4)
        return [record, record.copy()] if record.payload["n"] % 5 == 0 else record

    ends: dict[str, dict[str, Any]] = {
        "write": {},
        "flush": {"acks": AckMode.FLUSH},
        "later": {"acks": AckMode.LATER, "script": LATE},
    }
    state = await Supervisor(
        pipeline(log, records=40, processors=[Processor("jitter", jitter, workers=3)], destinations=ends),
        MemoryStore(),
    ).run()

    assert state.status is Status.COMPLETED
    expected = [n for n in range(40) for _ in range(2 if n % 5 == 0 else 1)]
    for name in ends:
        assert [delivery.number for delivery in log.received[name]] == expected
    assert log.acked["source"] == positions(40)
    log.check()


@simulated(seeds=range(30))
async def test_invariant_2_no_ack_before_every_destination_and_the_store_have_it(seed: int) -> None:
    log = EventLog()
    ends: dict[str, dict[str, Any]] = {
        "quick": {},
        "slow": {"acks": AckMode.LATER, "script": LATE},
        "flushed": {"acks": AckMode.FLUSH},
    }
    state = await Supervisor(pipeline(log, records=40, destinations=ends), OutageStore(log)).run()

    assert state.status is Status.COMPLETED
    stored = dict.fromkeys(ends, 0)
    durable = -1
    for event in log.events:
        if event.did == "store" and event.node in ends:
            stored[event.node] += 1
        elif event.did == "save" and event.what[0].startswith("position:"):
            durable = int(event.what[0].partition("=")[2])
        elif event.did == "ack":
            number = int(event.what[0])
            assert number <= durable
            assert all(number < len(set(log.numbers(name)[: stored[name]])) for name in ends if name != "slow")
            assert number in log.numbers("slow")[: stored["slow"]]
    assert log.acked["source"] == positions(40)


@simulated(seeds=range(30))
async def test_invariant_3_acks_are_in_order_and_once_whatever_order_answers_come_in(seed: int) -> None:
    log = EventLog()
    later = {"later": {"acks": AckMode.LATER, "script": LATE, "answer_chunks": [1, 3]}}
    state = await Supervisor(pipeline(log, records=40, destinations=later), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert log.acked["source"] == positions(40)
    log.check()


def test_invariant_3_when_message_500_cannot_be_dead_lettered_nothing_from_it_on_is_ever_acked() -> None:
    log = EventLog()

    async def refuse_to_keep(letter: DeadLetter) -> None:
        raise OSError("the cellar is flooded")

    async def main() -> None:
        refused = {"destination": {"script": {500: Refuse("poison")}}}
        letters = DeadLetters(refuse_to_keep)
        written = pipeline(log, records=1000, destinations=refused, dead_letters=letters, batch_size=64, window=2000)
        store = MemoryStore()
        state = await Supervisor(written, store, recovery=QUICK).run()

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "dead_letter.failed"
        assert "poison" in state.error.message
        assert "flooded" in state.error.message
        assert log.acked["source"] == positions(500)
        assert await store.positions("p") == {"source": b"499"}

    simulate(main)


@simulated(seeds=range(30))
async def test_invariants_4_and_5_one_fate_each_unanimous_and_dead_lettered_once(seed: int) -> None:
    log, letters = EventLog(), []
    fates: list[tuple[int, sdk.Fate]] = []

    async def keep(letter: DeadLetter) -> None:
        letters.append(letter)

    def watch(batch: sdk.Batch) -> list[Record]:
        for index in range(len(batch)):
            batch.on_fate(index, lambda message, fate: fates.append((message.sequence, fate)))
        return batch.records

    def even_only(record: Record) -> Record | None:
        return record if record.payload["n"] % 2 == 0 else None

    ends: dict[str, dict[str, Any]] = {
        "a": {"script": {4: Refuse("a says no"), 8: Refuse("a says no")}},
        "b": {"acks": AckMode.LATER, "script": {**LATE, 8: (Refuse("b says no"), OnAnswer(Delay(3)))}},
    }
    watching = sdk.processor(batch=True, name="watch")(watch)
    written = pipeline(log, processors=[watching, even_only], destinations=ends, dead_letters=DeadLetters(keep))
    state = await Supervisor(written, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert [(each.message.sequence, [f.node for f in each.failures]) for each in letters] == [
        (4, ["a"]),
        (8, ["a", "b"]),
    ]
    nacked = {4, 8}
    assert sorted(fates) == sorted(
        ((n, sdk.Fate.NACKED if n in nacked else sdk.Fate.ACKED) for n in range(20)), key=lambda each: each[0]
    )
    assert log.numbers("a") == [n for n in range(0, 20, 2) if n not in nacked]
    assert sorted(n for n in log.numbers("b") if n is not None) == [n for n in range(0, 20, 2) if n != 8]
    assert log.acked["source"] == positions(20)


@simulated(seeds=range(20))
async def test_invariant_5_a_filter_before_a_two_way_fan_out_filters_for_both(seed: int) -> None:
    log = EventLog()

    def drop_odd(record: Record) -> Record | None:
        return None if record.payload["n"] % 2 else record

    ends: dict[str, dict[str, Any]] = {"a": {}, "b": {"acks": AckMode.FLUSH}}
    state = await Supervisor(pipeline(log, processors=[drop_odd], destinations=ends), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert log.numbers("a") == log.numbers("b") == list(range(0, 20, 2))
    assert log.acked["source"] == positions(20)


@simulated(seeds=range(20))
async def test_invariant_5_split_then_nack_one_piece_nacks_the_record_and_keeps_the_piece(seed: int) -> None:
    log, letters = EventLog(), []

    async def keep(letter: DeadLetter) -> None:
        letters.append(letter)

    def in_three(record: Record) -> list[Record]:
        return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(3)]

    refusing = {"destination": {"script": {51: Refuse("no"), 52: Refuse("no")}}}
    written = pipeline(
        log, records=8, processors=[in_three], destinations=refusing, dead_letters=DeadLetters(keep), batch_size=3
    )
    state = await Supervisor(written, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert [(each.message.sequence, each.message.piece, each.record.payload["n"]) for each in letters] == [
        (5, (1,), 51),
        (5, (2,), 52),
    ]
    pieces = [n * 10 + piece for n in range(8) for piece in range(3)]
    assert log.numbers() == [n for n in pieces if n not in (51, 52)]
    assert log.acked["source"] == positions(8)


@simulated(seeds=range(20))
async def test_invariant_6_messages_in_flight_never_exceed_the_window(seed: int) -> None:
    log = EventLog()
    ends: dict[str, dict[str, Any]] = {"fast": {}, "slow": {"script": {n: Delay(1) for n in range(60)}}}
    supervisor = Supervisor(pipeline(log, records=60, destinations=ends, window=9, batch_size=4), MemoryStore())
    state = await supervisor.run()

    assert state.status is Status.COMPLETED
    read = acked = worst = 0
    for event in log.events:
        read += len(event.what) if event.did == "read" else 0
        acked += 1 if event.did == "ack" else 0
        worst = max(worst, read - acked)
    assert worst == 9
    assert log.numbers("fast") == log.numbers("slow") == numbers(60)


@simulated(seeds=range(10))
async def test_invariant_7_the_slowest_destination_sets_the_speed_and_what_blocks_is_visible(seed: int) -> None:
    log = EventLog()
    ends: dict[str, dict[str, Any]] = {"fast": {}, "stuck": {"script": {5: Block()}}}
    supervisor = Supervisor(pipeline(log, records=1000, destinations=ends, window=8, batch_size=2), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        seen = supervisor.progress()
        supervisor.force()

    assert len(log.read["source"]) == 12  # 4 acked, 8 in flight, and not one more
    assert seen.in_flight == 8
    assert seen.blocked_on == "stuck: write"
    assert len(log.received["fast"]) <= 12


@simulated(seeds=range(30))
async def test_invariant_8_a_graceful_stop_of_a_full_pipeline_settles_all_it_has_read(seed: int) -> None:
    log, store = EventLog(), MemoryStore()
    ends: dict[str, dict[str, Any]] = {
        "a": {"script": {n: Delay(0.1) for n in range(1000)}},
        "b": {"acks": AckMode.LATER, "script": {n: OnAnswer(Delay(0.5)) for n in range(1000)}},
        "c": {"acks": AckMode.FLUSH},
    }
    supervisor = Supervisor(pipeline(log, records=1000, destinations=ends), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(3)
        supervisor.stop()
        supervisor.stop()

    read = log.read["source"]
    assert 0 < len(read) < 1000
    assert log.acked["source"] == read
    assert log.numbers("a") == log.numbers("c") == numbers(len(read))
    assert await store.positions("p") == {"source": read[-1]}
    assert supervisor.state.status is Status.STOPPED
    assert supervisor.state.stopped_by is Stopper.USER
    assert supervisor.state.error is None
    assert len(log.did("teardown")) == 4
    log.check()


@simulated(seeds=range(10))
async def test_invariant_8_a_stop_while_a_node_is_stuck_becomes_forceful_at_the_deadline(seed: int) -> None:
    log = EventLog()
    stuck = {"destination": {"script": {5: Block()}}}
    supervisor = Supervisor(pipeline(log, destinations=stuck, stop_seconds=7), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(10)
        supervisor.stop()

    assert 17 <= trio.current_time() < 20
    assert supervisor.state.status is Status.STOPPED
    assert supervisor.state.error is not None
    assert supervisor.state.error.code == "stop.timed_out"
    assert log.acked["source"] == []
    assert len(log.did("teardown")) == 2


@simulated(seeds=range(20))
async def test_invariant_9_a_forceful_stop_drops_what_is_in_flight_and_a_restart_reads_it_again(seed: int) -> None:
    log, store = EventLog(), MemoryStore()
    slow = {"destination": {"script": {n: Delay(1) for n in range(20)}}}
    first = Supervisor(pipeline(log, destinations=slow, batch_size=3), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await trio.sleep(7.5)
        first.force()
    assert trio.current_time() < 9
    acked = len(log.acked["source"])
    assert acked < 20
    assert first.state.status is Status.STOPPED

    second = await Supervisor(pipeline(log, destinations=slow, batch_size=3), store).run()

    assert second.status is Status.COMPLETED
    assert first_occurrences(log.numbers()) == numbers(20)
    assert log.acked["source"] == positions(20)


@simulated(seeds=range(20))
async def test_invariant_9_a_second_failure_does_not_mask_the_first(seed: int) -> None:
    log = EventLog()
    destination = {"destination": {"script": {3: Fail("the first"), 4: Fail("later")}, "at_teardown": Fail("teardown")}}
    source = {"at_teardown": Fail("teardown too")}
    state = await Supervisor(pipeline(log, destinations=destination, source=source), MemoryStore()).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.message == "the first"
    assert state.error.node == "destination"


@simulated(seeds=range(10))
async def test_invariant_10_a_stop_during_back_off_abandons_the_recovery(seed: int) -> None:
    log = EventLog()
    failing = {"destination": {"script": {3: Fail("link down", times=None)}}}
    slow = Recovery(delay_seconds=60)
    supervisor = Supervisor(pipeline(log, destinations=failing), MemoryStore(), recovery=slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(20)
        waiting = supervisor.state.status
        supervisor.stop()

    assert waiting is Status.RECOVERING
    assert trio.current_time() == 20
    assert supervisor.state.status is Status.STOPPED
    assert supervisor.state.error is not None
    assert supervisor.state.error.message == "link down"
    assert len(log.did("open", "source")) == 1


@simulated(seeds=range(5))
async def test_invariant_11_a_crash_at_any_moment_re_reads_and_never_skips(seed: int) -> None:
    """Every lasting moment in turn: after the restart nothing is missing, even upstream prunes what was acked."""
    for moment in itertools.count():
        log = EventLog()
        store = OutageStore(log)
        ends: dict[str, dict[str, Any]] = {
            "a": {"acks": AckMode.FLUSH},
            "b": {"acks": AckMode.LATER, "script": {2: Refuse("no"), 3: OnAnswer(Delay(2))}},
        }
        letters = DeadLetters(ScriptedDestination(name="letters", log=log))

        def made(log: EventLog = log, ends: Any = ends, letters: DeadLetters = letters) -> Pipeline:
            return pipeline(
                log, records=6, destinations=ends, batch_size=2, window=4, source={"prunes": True}, dead_letters=letters
            )

        struck = await run_with_outage(Supervisor(made(), store).run, log=log, moment=moment)
        state = await Supervisor(made(), store).run()

        assert state.status is Status.COMPLETED
        assert first_occurrences(log.numbers("a")) == numbers(6)
        assert sorted(set(log.numbers("b"))) == numbers(6, but=[2])  # type: ignore[type-var]
        assert set(log.numbers("letters")) == {2}
        log.check()
        if not struck:
            break
    assert moment > 30


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.dictionaries(
        st.integers(0, 19),
        st.sampled_from([Fail("x"), Refuse("y"), Delay(0.3), OnAck(Fail("z"))]),
        max_size=6,
    ),
    st.sampled_from([AckMode.WRITE, AckMode.FLUSH, AckMode.LATER]),
    st.integers(1, 9),
)
def test_invariant_11_transient_failures_anywhere_lose_nothing_and_recovery_ends(
    seed: int, script: dict[int, ScriptStep], acks: AckMode, batch_size: int
) -> None:
    log, letters = EventLog(), []

    async def keep(letter: DeadLetter) -> None:
        letters.append(letter.message.sequence)

    async def main() -> None:
        at_source = {n: step for n, step in script.items() if not isinstance(step, Refuse)}
        at_end = {n: step for n, step in script.items() if not isinstance(step, OnAck)}
        written = pipeline(
            log,
            source={"script": at_source, "prunes": True},
            destinations={"destination": {"acks": acks, "script": at_end}},
            dead_letters=DeadLetters(keep),
            batch_size=batch_size,
        )
        state = await Supervisor(written, MemoryStore(), recovery=QUICK).run()

        assert state.status is Status.COMPLETED
        refused = [n for n, step in script.items() if isinstance(step, Refuse)]
        assert first_occurrences(sorted(n for n in log.numbers() if n is not None)) == numbers(20, but=refused)
        acked = [int(position) for position in log.acked["source"]]
        assert acked == sorted(set(acked))

    simulate(main, seed=seed)
