"""How far a source is behind: asked beside the data path, which notices nothing of it."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, memory
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Lag
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import LAG_SECONDS
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource


def supervised(source: Any, log: EventLog | None = None) -> Supervisor:
    pipeline = Pipeline(
        "p",
        sources=[Source("in", source)],
        destinations=[Destination("out", ScriptedDestination(log=log or EventLog()))],
    )
    return Supervisor(pipeline, MemoryStore())


def lag_of(supervisor: Supervisor) -> Lag | None:
    return next(meter.lag for meter in supervisor.progress().nodes if meter.node == "in")


class Asked(ScriptedSource):
    """Is one record further behind each time that it is asked."""

    times: list[float]

    async def lag(self) -> Lag:
        self.times.append(trio.current_time())
        return Lag(records=len(self.times))

    def fresh(self) -> "Asked":
        new = super().fresh()
        assert isinstance(new, Asked)
        new.times = self.times
        return new


async def test_it_is_asked_every_few_seconds_while_the_pipeline_runs(autojump_clock: MockClock) -> None:
    source = Asked(bounded=False)
    source.times = []
    supervisor = supervised(source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(2.5 * LAG_SECONDS)
        lag = lag_of(supervisor)
        supervisor.stop()

    assert source.times == [0, LAG_SECONDS, 2 * LAG_SECONDS]
    assert lag == Lag(records=3)
    assert supervisor.state.status is Status.STOPPED
    assert lag_of(supervisor) is None


class Stuck(ScriptedSource):
    """Never says how far it is behind, and blocks the thread in which it is asked."""

    released: threading.Event

    def lag(self) -> Lag | None:
        self.released.wait(300)
        return None

    def fresh(self) -> "Stuck":
        new = super().fresh()
        assert isinstance(new, Stuck)
        new.released = self.released
        return new


async def test_one_that_never_answers_holds_up_nothing() -> None:
    log = EventLog()
    source = Stuck(records=1000, log=log)
    source.released = threading.Event()
    try:
        state = await supervised(source, log).run()
    finally:
        source.released.set()

    assert state.status is Status.COMPLETED
    assert len(log.acked["source"]) == 1000


class Confused(ScriptedSource):
    """Fails when it is asked, or answers something else."""

    async def lag(self) -> Any:
        if trio.current_time() < LAG_SECONDS:
            raise OSError("no route to host")
        return 5


async def test_an_error_is_logged_once_and_ends_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = supervised(Confused(bounded=False))
    with caplog.at_level(logging.INFO):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(4 * LAG_SECONDS)
            supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert caplog.messages == ["in: lag is not available: OSError: no route to host"]


async def test_a_list_is_behind_by_its_records(autojump_clock: MockClock) -> None:
    source = memory.Source(records=[{"n": n} for n in range(10)])
    await source.open(None)
    await source.read(4)

    assert await source.lag() == Lag(records=6)


def test_a_file_is_behind_by_its_bytes_also_while_it_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    source = file.Source(path=path, tail=True)
    source.open(None)
    seen = [source.lag()]
    source.read(1)
    seen.append(source.lag())
    path.rename(tmp_path / "app.log.1")
    seen.append(source.lag())
    path.write_bytes(b"four\n")
    seen.append(source.lag())
    source.read(2)
    seen.append(source.lag())
    source.teardown()

    assert [lag and lag.bytes for lag in seen] == [14, 10, 10, 15, 5]


def test_a_file_that_is_not_there_yet_is_behind_by_nothing(tmp_path: Path) -> None:
    source = file.Source(path=tmp_path / "later.log", tail=True)
    source.open(None)

    assert source.lag() == Lag(bytes=0)
