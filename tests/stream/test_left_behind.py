"""Calls that a failed run leaves behind in threads: released if possible, and never beside the next run."""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio

from conduit_py import Destination, Pipeline, Record, Recovery, Source, sdk
from conduit_py.errors import TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, EndOfSource
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import number_of, position_of

QUICK = Recovery(delay_seconds=0.01, delay_max_seconds=0.01)


class World:
    """What happened, in order, and gates between the test and the threads of the connectors."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stuck = threading.Event()
        self.release = threading.Event()
        self.told = threading.Event()
        self.warned = threading.Event()
        self.runs = 0


class NotingHandler(logging.Handler):
    """Tells a world that somebody waits for what was left behind."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        if "is still running" in record.getMessage():
            self.world.warned.set()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    handler = NotingHandler(world)
    logging.getLogger("conduit_py").addHandler(handler)
    yield world
    logging.getLogger("conduit_py").removeHandler(handler)
    world.release.set()


class Numbers(sdk.SourceConnector[sdk.Options]):
    """Counts to 6; in the first run it fails as soon as a write is stuck."""

    world: World

    def open(self, position: bytes | None) -> None:
        self.world.runs += 1
        self.next = 0 if position is None else int(position) + 1

    def read(self, n: int) -> list[Record]:
        if self.world.runs == 1 and self.next == 4:
            assert self.world.stuck.wait(300)
            raise TransientError("lost the connection")
        if self.next == 6:
            raise EndOfSource
        self.next += 1
        return [Record.of({"n": self.next - 1}, position=position_of(self.next - 1))]


class Upserts(sdk.DestinationConnector[sdk.Options]):
    """The first write of record 2 waits until the test lets it through; what counts is when a write takes effect."""

    world: World

    def open(self) -> None:
        self.world.events.append("open")

    def write(self, batch: Batch) -> None:
        numbers = [number_of(record) for record in batch]
        if 2 in numbers and not self.world.stuck.is_set():
            self.world.stuck.set()
            assert self.world.release.wait(300)
        self.world.events += [f"write {number}" for number in numbers]

    def teardown(self) -> None:
        self.world.events.append("teardown")


def at(world: World, connector: type[Any]) -> Any:
    """A connector of this class in this world."""
    return type(connector.__name__, (connector,), {"world": world})()


async def test_a_write_that_is_still_under_way_is_waited_for_before_the_next_run(world: World) -> None:
    """Else it could take effect after the writes that repeat it and those that follow: a value from the past."""
    pipeline = Pipeline(
        "p",
        sources=[Source("numbers", at(world, Numbers), batch_size=1)],
        destinations=[Destination("upserts", at(world, Upserts))],
    )
    supervisor = Supervisor(pipeline, MemoryStore(), recovery=QUICK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.to_thread.run_sync(world.warned.wait, 30)
        assert supervisor.progress().status == "recovering"
        assert world.events.count("open") == 1
        world.release.set()

    assert supervisor.state.status is Status.COMPLETED
    writes = [int(event.split()[1]) for event in world.events if event.startswith("write")]
    late = writes.index(2)
    # What came after the stuck write repeats it or follows it; nothing older comes once something newer has come.
    assert writes[: late + 1] == [0, 1, 2]
    assert sorted(writes[late + 1 :]) == writes[late + 1 :]
    assert writes[-1] == 5
    assert world.events.index("teardown") < len(world.events) - world.events[::-1].index("open") - 1


async def test_a_stop_does_not_wait_for_it(world: World) -> None:
    pipeline = Pipeline(
        "p",
        sources=[Source("numbers", at(world, Numbers), batch_size=1)],
        destinations=[Destination("upserts", at(world, Upserts))],
    )
    supervisor = Supervisor(pipeline, MemoryStore(), recovery=QUICK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.to_thread.run_sync(world.warned.wait, 30)
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert not world.release.is_set()


class Waiting(sdk.SourceConnector[sdk.Options]):
    """Has two records, then waits for its stop; a thread of it that stays counts as a leak."""

    world: World

    def open(self, position: bytes | None) -> None:
        self.left = 2
        self.world.events.append("open")

    def read(self, n: int) -> list[Record]:
        if not self.left:
            self.world.stuck.set()
            assert self.world.told.wait(300)
            raise EndOfSource
        self.left -= 1
        return [Record.of({"n": self.left}, position=position_of(self.left))]

    def ack(self, positions: Sequence[bytes]) -> None:
        pass

    def stop(self) -> None:
        self.world.events.append("stop")
        self.world.told.set()

    def teardown(self) -> None:
        self.world.events.append("teardown")


@pytest.mark.parametrize("how", ["fail", "force"])
async def test_a_read_that_waits_is_asked_to_stop_before_the_teardown_of_a_run_that_is_cut_short(
    how: str, world: World
) -> None:
    class Failing(sdk.DestinationConnector[sdk.Options]):
        def write(self, batch: Batch) -> None:
            assert world.stuck.wait(300)
            if how == "fail":
                raise TransientError("no space left")

    before = set(threading.enumerate())
    pipeline = Pipeline(
        "p",
        sources=[Source("waiting", at(world, Waiting), batch_size=1)],
        destinations=[Destination("failing", Failing())],
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        if how == "force":
            await trio.to_thread.run_sync(world.stuck.wait, 30)
            supervisor.force()

    assert world.events == ["open", "stop", "teardown"]
    left = [each for each in set(threading.enumerate()) - before if each.name.startswith("conduit-")]
    for thread in left:
        await trio.to_thread.run_sync(thread.join, 10)
    assert not any(thread.is_alive() for thread in left)
