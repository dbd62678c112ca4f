"""Meters: what a run leaves in them, on virtual time, and their sum over runs."""

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor
from conduit_py.backoff import Recovery
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Meter
from conduit_py.testing import Block, Delay, EventLog, Fail, ScriptedDestination, ScriptedSource


@processor
async def slow(record: Record) -> Record:
    await trio.sleep(0.2)
    return record


def supervised(log: EventLog, *, script: dict[int, object], records: int = 6) -> Supervisor:
    source = ScriptedSource(records=records, name="source", log=log)
    destination = ScriptedDestination(name="to", log=log, script=script)
    pipeline = Pipeline(
        "p",
        sources=[Source("source", source, batch_size=3, window=6)],
        processors=[slow],
        destinations=[Destination("to", destination)],
        dead_letters=DeadLetters("drop"),
    )
    return Supervisor(pipeline, MemoryStore(), recovery=Recovery(delay_seconds=1, delay_max_seconds=1))


def meters(supervisor: Supervisor) -> dict[str, Meter]:
    return {meter.node: meter for meter in supervisor.progress().nodes}


async def test_durations_and_sizes_are_observed_once_per_call_and_latency_once_per_record(
    autojump_clock: MockClock,
) -> None:
    supervisor = supervised(EventLog(), script={0: Delay(2)})
    await supervisor.run()
    seen = meters(supervisor)

    assert seen["slow"].calls.count == seen["slow"].batches == seen["slow"].batch_sizes.count
    assert seen["slow"].calls.total == pytest.approx(6 * 0.2)
    assert seen["slow"].batch_sizes.total == 6
    assert seen["to"].calls.count == seen["to"].batches
    assert seen["to"].calls.total == pytest.approx(2)
    assert seen["source"].settling.count == 6
    assert seen["source"].settling.total >= 2
    assert seen["source"].checkpoints.count == seen["source"].persists.count > 0


async def test_progress_ages_while_records_wait_and_only_then(autojump_clock: MockClock) -> None:
    supervisor = supervised(EventLog(), script={3: Block()})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(100)
        blocked = supervisor.progress()
        await trio.sleep(50)
        later = supervisor.progress()
        supervisor.force()
    ended = supervisor.progress()

    assert 90 < blocked.stalled_seconds <= 100
    assert later.stalled_seconds - blocked.stalled_seconds == pytest.approx(50)
    assert later.nodes[0].oldest_seconds >= later.stalled_seconds
    assert ended.stalled_seconds == 0
    assert ended.nodes[0].oldest_seconds == 0


async def test_counts_and_histograms_go_on_after_a_recovery(autojump_clock: MockClock) -> None:
    supervisor = supervised(EventLog(), script={4: Fail("link down", times=2)})
    await supervisor.run()
    progress = supervisor.progress()

    assert progress.recoveries == 2
    assert meters(supervisor)["source"].settling.count == progress.acked == 6
    assert meters(supervisor)["to"].calls.count > meters(supervisor)["to"].batches
