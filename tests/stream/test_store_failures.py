"""A state store that fails: nothing is acked whose position is not durable."""

from typing import Any

import pytest
import trio

from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import Delay, EventLog, Refuse, ScriptedDestination, ScriptedSource, position_of, simulated


def made(log: EventLog, *, acks: AckMode = AckMode.WRITE, script: dict[int, Any] | None = None) -> Pipeline:
    return Pipeline(
        "p",
        sources=[
            Source(id, ScriptedSource(name=id, records=12, log=log, prunes=True), batch_size=2, window=6)
            for id in ("a", "b")
        ],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, acks=acks, script=script or {}))],
        dead_letters=DeadLetters("drop"),
    )


@pytest.mark.parametrize("acks", list(AckMode))
@simulated(seeds=range(5))
async def test_after_any_number_of_writes_nothing_more_is_acked_and_nothing_is_lost(acks: AckMode, seed: int) -> None:
    for writes in range(100):
        log, store = EventLog(), MemoryStore(fail_after=writes)
        script: dict[int, Any] = {3: Refuse("no")}
        state = await Supervisor(made(log, acks=acks, script=script), store).run()
        durable = await store.positions("p")

        for id in ("a", "b"):
            acked = log.acked[id]
            assert acked == [position_of(n) for n in range(len(acked))]
            assert len(acked) <= int(durable.get(id, b"-1")) + 1
        if state.error is None:
            assert state.status is Status.COMPLETED
            break
        assert state.error.code == "state.failed"

        store.fail_after = None
        assert (await Supervisor(made(log, acks=acks, script=script), store).run()).status is Status.COMPLETED
        for id in ("a", "b"):
            assert sorted(set(log.numbers("lake", id)), key=str) == sorted(set(range(12)) - {3}, key=str)
        log.check()
    assert writes > 5


@simulated(seeds=range(5))
async def test_one_that_mends_is_a_recovery_like_any_other(seed: int) -> None:
    log, store = EventLog(), MemoryStore()
    script: dict[int, Any] = {n: Delay(1) for n in range(12)}
    supervisor = Supervisor(made(log, script=script), store, recovery=Recovery(delay_seconds=5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(6.5)
        store.fail_after = 0
        await trio.sleep(10)
        assert supervisor.state.error is not None
        assert supervisor.state.error.code == "state.failed"
        store.fail_after = None

    assert supervisor.progress().status == "completed"
    assert await store.positions("p") == {"a": b"11", "b": b"11"}
    for id in ("a", "b"):
        assert list(dict.fromkeys(log.numbers("lake", id))) == list(range(12))
    log.check()
