"""A pipeline as a worker that handles messages: how many at once, how long a stop may take (vector ME-13)."""

import trio
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Processor, Record, Source, processor
from conduit_py.idempotency.tracker import MessageContext
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource


async def test_me_13_no_more_messages_are_handled_at_once_than_there_are_workers(autojump_clock: MockClock) -> None:
    at_once: list[int] = []
    closed: list[int] = []
    busy = 0

    @processor
    async def handle(record: Record) -> Record:
        nonlocal busy
        busy += 1
        at_once.append(busy)
        with MessageContext() as context:
            context.on("close", lambda: closed.append(1))
            await trio.sleep(1)
        busy -= 1
        return record

    log = EventLog()
    pipeline = Pipeline(
        "orders",
        sources=[Source("queue", ScriptedSource(records=12, log=log), batch_size=12)],
        processors=[Processor("handle", handle, workers=3)],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
    )
    state = await Supervisor(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert max(at_once) == 3
    assert len(closed) == len(log.stored["lake"]) == 12
    assert trio.current_time() == 4


async def test_me_13_a_stop_waits_for_handlers_no_longer_than_its_grace(autojump_clock: MockClock) -> None:
    @processor
    async def stuck(record: Record) -> Record:
        await trio.sleep_forever()
        return record

    log = EventLog()
    pipeline = Pipeline(
        "orders",
        sources=[Source("queue", ScriptedSource(records=1, log=log, bounded=False))],
        processors=[stuck],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
        stop_seconds=7,
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(3)
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert trio.current_time() == 10
    assert log.acked["queue"] == []
