"""When progress is committed: at once while there is little to commit, once for many batches under load."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.settler import SETTLE_SECONDS
from conduit_py.stream.signal import Pace
from conduit_py.testing import Delay, EventLog, ScriptedDestination, ScriptedSource


async def run(
    log: EventLog, records: int, script: dict[int, Any], *, batch_size: int = 200, window: int = 32_768
) -> None:
    source = ScriptedSource(records=records, log=log, script=script)
    pipeline = Pipeline(
        "p",
        sources=[Source("in", source, batch_size=batch_size, window=window)],
        destinations=[Destination("out", ScriptedDestination(log=log))],
    )
    await Supervisor(pipeline, MemoryStore()).run()
    log.check()


async def test_single_records_are_acked_when_they_are_handled(autojump_clock: MockClock) -> None:
    """A fixed pace would hold up each of them, and one commit for several saves nothing here."""
    log = EventLog()
    seconds = SETTLE_SECONDS / 5
    await run(log, 10, {number: Delay(seconds) for number in range(10)})

    assert [event.at for event in log.did("ack")] == [event.at for event in log.did("write")]


async def test_under_load_one_commit_serves_several_batches(autojump_clock: MockClock) -> None:
    log = EventLog()
    # A hundred records, then a pause that is much shorter than the pace, again and again.
    await run(log, 2000, {number: Delay(SETTLE_SECONDS / 10) for number in range(0, 2000, 100)})

    acked_at = sorted({event.at for event in log.did("ack")})
    assert len(acked_at) <= 10, "twenty batches"


async def test_a_source_is_not_held_up_because_what_is_settled_waits_for_more(autojump_clock: MockClock) -> None:
    """With half of the window in flight the commit comes at once, though the oldest record was settled long ago."""
    log = EventLog()
    pause = SETTLE_SECONDS / 10
    # A window has four batches, and five times as many come in the time that commits are apart.
    await run(log, 2000, {number: Delay(pause) for number in range(0, 2000, 100)}, batch_size=100, window=400)

    assert max(event.at for event in log.did("write")) < 20.5 * pause
    commits = {event.at for event in log.did("ack")}
    assert len(commits) <= 12, "twenty batches, two in half of a window"


@pytest.mark.parametrize(
    ("durations", "pause"),
    [
        pytest.param([0.001], 0.01, id="the first"),
        pytest.param([0.001, 0.05], 0.01, id="one that waited for a core or a neighbour"),
        pytest.param([0.001, *[0.005] * Pace.RECENT_STEPS], 0.05, id="a store that became slow"),
        pytest.param([0.05] * Pace.RECENT_STEPS, Pace.SECONDS_MAX, id="a slow store, up to the limit"),
        pytest.param([0.05, 0.001], 0.01, id="a store that became quick"),
    ],
)
async def test_the_pace_follows_the_shortest_of_the_last_steps(
    autojump_clock: MockClock, durations: list[float], pause: float
) -> None:
    pace = Pace(0)
    for duration in durations:
        started = trio.current_time()
        await trio.sleep(duration)
        pace.end_step(started)

    assert pace.due_at - trio.current_time() == pytest.approx(pause)
