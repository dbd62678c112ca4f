"""Stopping, promised of both engines: graceful, forceful, at a deadline, in a back-off, while a job runs."""

from pathlib import Path

import pytest
import trio
from engine_world import EVERY_WAY, World, kept, sorted_out

from conduit_py.backoff import Recovery
from conduit_py.errors import TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.status import Status, Stopper
from conduit_py.store.memory import MemoryStore

SECONDS_MAX = 300.0
SMALL = TransactionLimits(max_records=100)


async def until_made(path: Path) -> None:
    while not await trio.Path(path).exists():  # noqa: ASYNC110 - it may be made by another process
        await trio.sleep(0.02)


@EVERY_WAY
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_graceful_stop_settles_what_was_read_and_the_next_run_does_the_rest(
    world: World, delivery: str
) -> None:
    """Nothing is there twice: what was read is settled, and what was not read is nobody's business yet."""
    world.write(range(1500))
    store = MemoryStore()
    settings = {"delivery": delivery, "transaction": SMALL if delivery == "exactly_once" else None}
    pipeline = world.pipeline(sorted_out, sources=[world.source(window=200)], **settings)
    supervisor = world.supervisor(pipeline, store)

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            while supervisor.progress().acked < 150:  # noqa: ASYNC110 - progress is looked at
                await trio.sleep(0.001)
            supervisor.stop()
            supervisor.stop()
    stopped, count = supervisor.progress(), len(world.rows())
    again = await world.run(pipeline, store)

    assert (supervisor.state.status, supervisor.state.stopped_by) == (Status.STOPPED, Stopper.USER)
    assert supervisor.state.error is None
    assert stopped.acked == stopped.read < 1500
    assert count == len(kept(range(stopped.read)))
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers() == kept(range(1500))


@pytest.mark.parametrize("how", ["stop", "force"])
async def test_a_stop_while_executors_are_busy_does_not_wait_for_them(world: World, how: str) -> None:
    """A graceful one neither on Spark: what they have not given yet is read again. On one machine it was read."""
    world.write(range(300))
    store, marker = MemoryStore(), world.folder / "begun"

    async def stuck(record: Record) -> Record:
        if not marker.exists():
            marker.touch()
            await trio.sleep_forever()
        return record

    pipeline = world.pipeline(stuck, stop_seconds=0.5 if not world.on_spark else 30)
    supervisor = world.supervisor(pipeline, store)
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until_made(marker)
            supervisor.stop()
            if how == "force":
                supervisor.force()
    again = await world.run(pipeline, store)

    assert supervisor.state.status is Status.STOPPED
    timed_out = how == "stop" and not world.on_spark
    assert (supervisor.state.error is not None) == timed_out
    assert supervisor.progress().acked == 0
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers() == list(range(300))


async def test_a_stop_while_a_destination_is_stuck_becomes_forceful_at_the_deadline(world: World) -> None:
    world.write(range(300))
    store = MemoryStore()
    pipeline = world.pipeline(destinations=[world.destination(kind=stuck_once(world))], stop_seconds=0.5)
    supervisor = world.supervisor(pipeline, store)
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until_made(world.folder / "stuck")
            supervisor.stop()
    again = await world.run(pipeline, store)

    assert supervisor.state.status is Status.STOPPED
    assert supervisor.state.error is not None
    assert supervisor.state.error.code == "stop.timed_out"
    assert supervisor.progress().acked == 0
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers() == list(range(300))


async def test_a_stop_in_a_back_off_abandons_the_recovery(world: World) -> None:
    world.write(range(20))

    def fails(record: Record) -> Record:
        raise TransientError("link down")

    supervisor: Supervisor = world.supervisor(world.pipeline(fails, recovery=Recovery(delay_seconds=600)))
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            while supervisor.state.status.value != "recovering":  # noqa: ASYNC110 - the state is looked at
                await trio.sleep(0.02)
            supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert supervisor.state.error is not None
    assert supervisor.state.error.message == "link down"


async def test_a_slow_destination_sets_the_speed_and_is_named(world: World) -> None:
    """What is read and not settled is bounded: by the window, and on Spark by the jobs that are ahead."""
    world.write(range(6000))
    pipeline = world.pipeline(
        sources=[world.source(window=200)], destinations=[world.destination(kind=stuck_once(world))]
    )
    supervisor = world.supervisor(pipeline)
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            while supervisor.progress().blocked_on != "out: write":  # noqa: ASYNC110 - progress is looked at
                await trio.sleep(0.02)
            seen = supervisor.progress()
            supervisor.force()

    [source, *_] = seen.nodes
    assert source.acked == 0
    if world.prepares:
        # Parts, of which two for each core are given out: none of them is larger than a part.
        assert source.in_flight == 4
        assert seen.read <= 4 * 260
    else:
        assert (source.in_flight, seen.read) == (200, 200)


def stuck_once(world: World) -> type:
    """A file that hangs when it is first written, in a world."""
    marker = world.folder / "stuck"

    class Stuck(world.kind):  # type: ignore[misc, name-defined]
        blocking = False

        async def write(self, batch):  # type: ignore[no-untyped-def]
            await self._hang()
            return super().write(batch)

        async def take(self, pieces):  # type: ignore[no-untyped-def]
            await self._hang()
            super().take(pieces)

        async def _hang(self) -> None:
            if not marker.exists():
                marker.touch()
                await trio.sleep_forever()

    return Stuck
