"""Processors exchanged while records flow: each goes through the old ones or the new ones, once, in order."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Processor, Record, Recovery, Retry, Source, sdk
from conduit_py.errors import NodeFailed
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import DeadLetters
from conduit_py.sdk.destination import WriteGuarantee
from conduit_py.sdk.processor import FunctionProcessor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.hot_swap import LOOK_SECONDS
from conduit_py.testing import Block, Delay, EventLog, Fail, ScriptedDestination, ScriptedSource, simulated

RECORDS = 48


class Life:
    """What became of the processors: which were opened and closed, and how many records each saw."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.unopenable: set[str] = set()
        self.hooks: dict[str, Callable[[], None]] = {}
        self.failing: set[tuple[str, int]] = set()


class MarkOptions(sdk.Options):
    """What a processor marks records with, and who keeps the books."""

    mark: str
    life: Life
    seconds: float = 0.0


class Mark(sdk.Processor[MarkOptions]):
    """Adds its mark to every record, after a while."""

    async def open(self) -> None:
        life, mark = self.options.life, self.options.mark
        await trio.sleep(0.1)
        if mark in life.unopenable:
            raise ConnectionError("no such service")
        life.opened.append(mark)

    async def process(self, record: Record) -> Record:
        life, mark = self.options.life, self.options.mark
        assert mark in life.opened
        assert life.closed.count(mark) < life.opened.count(mark)
        await trio.sleep(self.options.seconds)
        if (mark, record.payload["n"]) in life.failing:
            raise ValueError("not this one")
        record.payload["marks"] = [*record.payload.get("marks", ()), mark]
        return record

    async def close(self) -> None:
        if self.options.mark not in self.options.life.unopenable:
            self.options.life.closed.append(self.options.mark)


class Bench:
    """A pipeline of two sources and two destinations with processors at every place, and its two versions."""

    def __init__(self, **settings: Any) -> None:
        self.log = EventLog()
        self.life = Life()
        self.store = MemoryStore()
        self.settings = {"seconds": 0.1, "workers": 1, "retry": Retry(attempts=1), **settings}

    def mark(self, place: str, version: str) -> Processor:
        plugin = Mark(mark=f"{place}-{version}", life=self.life, seconds=self.settings["seconds"])
        return Processor(place, plugin, workers=self.settings["workers"], retry=self.settings["retry"])

    def pipeline(self, version: str = "old", **ends: Any) -> Pipeline:
        def source(id: str) -> Source:
            connector = ScriptedSource(name=id, records=RECORDS, log=self.log, bounded=False)
            return Source(id, connector, batch_size=4, window=24, processors=[self.mark(f"at-{id}", version)])

        def destination(id: str, script: Any) -> Destination:
            connector = ScriptedDestination(name=id, log=self.log, script=script)
            return Destination(id, connector, processors=[self.mark(f"to-{id}", version)])

        return Pipeline(
            "p",
            sources=[source("a"), source("b")],
            processors=[self.mark("first", version), self.mark("second", version)],
            destinations=[destination("x", ends.get("x", {})), destination("y", ends.get("y", {}))],
            dead_letters=DeadLetters(ScriptedDestination(name="dead", log=self.log)),
        )

    def check(self) -> list[str]:
        """Raise unless every record is in both destinations once, in order, by one version; the versions in order."""
        self.log.check()
        for destination in ("x", "y"):
            for source in ("a", "b"):
                assert self.log.numbers(destination, source) == list(range(RECORDS))
        for delivery in self.log.stored["x"] + self.log.stored["y"]:
            marks = delivery.record.payload["marks"]
            assert len(marks) == 4
            assert len({mark.rpartition("-")[2] for mark in marks}) == 1, marks
        return [each.record.payload["marks"][0].rpartition("-")[2] for each in self.log.stored["x"]]


NODES = ["a:at-a", "b:at-b", "first", "second", "x:to-x", "y:to-y"]


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await trio.sleep(0.1)


async def wait_until_finished(supervisor: Supervisor, log: EventLog, records: int = 4 * RECORDS) -> None:
    await until(lambda: len(log.stored["x"]) + len(log.stored["y"]) >= records)
    supervisor.stop()


@simulated(seeds=range(12))
async def test_each_record_meets_one_version_everywhere_once_and_in_order(seed: int) -> None:
    bench = Bench(workers=1 + seed % 3)
    supervisor = Supervisor(bench.pipeline(), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(2 + seed / 10)
        await supervisor.swap(compile_pipeline(bench.pipeline("new")), NODES)
        await wait_until_finished(supervisor, bench.log)

    versions = bench.check()
    assert {"old", "new"} == set(versions)
    assert supervisor.state.status is Status.STOPPED
    for place in ("first", "second", "to-x"):
        workers = 1 + seed % 3
        for version in ("old", "new"):
            assert bench.life.opened.count(f"{place}-{version}") == workers
            assert bench.life.closed.count(f"{place}-{version}") == workers


@simulated(seeds=range(5))
async def test_many_swaps_in_a_row_also_while_nothing_can_leave(seed: int) -> None:
    bench = Bench(seconds=0.01)
    supervisor = Supervisor(bench.pipeline("0", x={20: Delay(30)}), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        for version in range(1, 6):
            await trio.sleep(seed / 5)
            await supervisor.swap(compile_pipeline(bench.pipeline(str(version))), NODES)
        await wait_until_finished(supervisor, bench.log)

    versions = bench.check()
    assert versions[-1] == "5"
    by_source = [
        [each.record.payload["marks"][0].rpartition("-")[2] for each in bench.log.stored["x"] if each.source == source]
        for source in ("a", "b")
    ]
    assert [sorted(each) for each in by_source] == by_source
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(5))
async def test_the_old_one_is_closed_while_the_run_goes_on(seed: int) -> None:
    bench = Bench(seconds=0.0)
    supervisor = Supervisor(bench.pipeline(), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        await supervisor.swap(compile_pipeline(bench.pipeline("new")), ["first"])
        await trio.sleep(2 * LOOK_SECONDS)
        assert bench.life.closed == ["first-old"]
        supervisor.stop()

    assert bench.life.closed.count("first-old") == 1
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(5))
async def test_one_that_cannot_be_opened_changes_nothing(seed: int) -> None:
    bench = Bench()
    bench.life.unopenable = {"second-new"}
    supervisor = Supervisor(bench.pipeline(), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(2 + seed / 10)
        with pytest.raises(NodeFailed, match="second: open failed: ConnectionError: no such service"):
            await supervisor.swap(compile_pipeline(bench.pipeline("new")), NODES)
        assert "first-new" in bench.life.closed
        await wait_until_finished(supervisor, bench.log)

    assert set(bench.check()) == {"old"}
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(5))
async def test_a_record_that_is_retried_stays_with_the_version_it_met_first(seed: int) -> None:
    bench = Bench(retry=Retry(attempts=5, delay_seconds=2))
    bench.life.failing = {("first-old", 3)}
    letters: list[Any] = []
    old = bench.pipeline()
    old.dead_letters = DeadLetters(letters.append)
    supervisor = Supervisor(old, bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(lambda: "at-b-old" in bench.life.opened)
        await trio.sleep(1 + seed / 10)
        await supervisor.swap(compile_pipeline(bench.pipeline("new")), NODES)
        await wait_until_finished(supervisor, bench.log, records=4 * RECORDS - 4)

    assert [letter.message.sequence for letter in letters] == [3, 3]
    assert [(letter.node, letter.failures[0].attempt) for letter in letters] == [("first", 5)] * 2
    for destination in ("x", "y"):
        for source in ("a", "b"):
            assert bench.log.numbers(destination, source) == [n for n in range(RECORDS) if n != 3]


@simulated(seeds=range(5))
async def test_a_dead_letter_names_the_node_under_the_new_version_too(seed: int) -> None:
    bench = Bench(seconds=0.05)
    bench.life.failing = {("second-new", n) for n in range(40, RECORDS)}
    letters: list[Any] = []
    old, new = bench.pipeline(), bench.pipeline("new")
    for each in (old, new):
        each.dead_letters = DeadLetters(letters.append)
    supervisor = Supervisor(old, bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(2)
        await supervisor.swap(compile_pipeline(new), NODES)
        await wait_until_finished(supervisor, bench.log, records=4 * 40)

    assert sorted(letter.message.sequence for letter in letters) == sorted([*range(40, RECORDS)] * 2)
    assert {(letter.node, letter.error) for letter in letters} == {("second", "ValueError: not this one")}


@simulated(seeds=range(5))
async def test_a_swap_during_recovery_ends_the_back_off_and_counts_for_the_next_run(seed: int) -> None:
    bench = Bench()
    recovery = Recovery(delay_seconds=600, delay_max_seconds=600)
    supervisor = Supervisor(bench.pipeline(x={30: Fail("link down")}), bench.store, recovery=recovery)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(lambda: supervisor.state.status is Status.RECOVERING)
        await trio.sleep(seed)
        began, before = trio.current_time(), len(bench.life.opened)
        await supervisor.swap(compile_pipeline(bench.pipeline("new", x={30: Fail("link down")})), NODES)
        await until(lambda: len(bench.life.opened) > before)
        assert trio.current_time() - began < 5
        supervisor.stop()

    assert {mark.rpartition("-")[2] for mark in bench.life.opened[before:]} == {"new"}
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(24))
async def test_a_swap_at_any_moment_of_runs_that_fail_and_stop(seed: int) -> None:
    """Whenever it comes, what is opened is closed, nothing is lost, and the next run has the new version."""
    bench = Bench(seconds=0.02)
    script = {10: Fail("down"), 25: Fail("down again"), 40: Delay(3)}
    recovery = Recovery(delay_seconds=1, delay_max_seconds=1)
    supervisor = Supervisor(bench.pipeline(x=script), bench.store, recovery=recovery)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(seed / 4)
        await supervisor.swap(compile_pipeline(bench.pipeline("new", x=script)), NODES)
        read = {source: len(bench.log.read[source]) for source in ("a", "b")}
        ends = [(to, of) for to in ("x", "y") for of in ("a", "b")]
        await until(lambda: all(bench.log.numbers(*end)[-1:] == [RECORDS - 1] for end in ends))
        supervisor.stop()

    bench.log.check(after_run=True)
    for destination in ("x", "y"):
        for source in ("a", "b"):
            assert list(dict.fromkeys(bench.log.numbers(destination, source))) == list(range(RECORDS))
    for delivery in bench.log.stored["x"] + bench.log.stored["y"]:
        assert len({mark.rpartition("-")[2] for mark in delivery.record.payload["marks"]}) == 1
    for source in ("a", "b"):
        last = [each.record for each in bench.log.stored["y"] if each.source == source][-1]
        assert last.payload["marks"][1] == "first-new" or len(bench.log.read[source]) <= read[source]
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(5))
async def test_a_stop_does_not_wait_for_a_swap_whose_opening_hangs(seed: int) -> None:
    bench = Bench(seconds=0.0)

    class Hanging(sdk.Processor[sdk.Options]):
        async def open(self) -> None:
            await trio.sleep_forever()

        async def process(self, record: Record) -> Record:
            return record

    new = bench.pipeline("new")
    new.processors[0] = Processor("first", Hanging())
    supervisor = Supervisor(bench.pipeline(), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        async with trio.open_nursery() as swapping:
            swapping.start_soon(supervisor.swap, compile_pipeline(new), NODES)
            await trio.sleep(1)
            stopped_at = trio.current_time()
            supervisor.stop()
            await until(lambda: supervisor.state.status is Status.STOPPED)
            assert trio.current_time() - stopped_at < 2
            swapping.cancel_scope.cancel()

    assert sorted(bench.life.opened) == sorted(bench.life.closed)


@simulated(seeds=range(5))
async def test_a_fleet_swaps_and_remembers_for_the_next_start(seed: int) -> None:
    bench = Bench(seconds=0.0)
    async with trio.open_nursery() as nursery:
        fleet = Fleet(bench.store, nursery)
        await fleet.add(bench.pipeline())
        fleet.start("p")
        await trio.sleep(5)
        new = bench.pipeline("new")
        await fleet.swap(new, NODES)
        assert fleet["p"].pipeline is new
        await fleet.restart("p")
        await trio.sleep(5)
        await fleet.shutdown(5)

    assert bench.life.opened.count("first-new") == 2
    assert sorted(bench.life.opened) == sorted(bench.life.closed)


async def test_what_was_open_is_closed_when_the_caller_gives_up(autojump_clock: MockClock) -> None:
    bench = Bench(seconds=0.0)
    supervisor = Supervisor(bench.pipeline(x={5: Block()}), bench.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        with trio.move_on_after(0.15):
            await supervisor.swap(compile_pipeline(bench.pipeline("new")), NODES)
        assert bench.life.opened[-1:] == ["at-a-new"]
        assert bench.life.closed.count("at-a-new") == 1
        supervisor.force()

    assert sorted(bench.life.opened) == sorted(each for each in bench.life.closed if each != "at-b-new")


class KeptOptions(sdk.Options):
    """Where records are kept by their delivery keys."""

    kept: Any


class Kept(sdk.DestinationConnector[KeptOptions]):
    """Idempotent by delivery key, so an exactly-once pipeline may write to it."""

    guarantee = WriteGuarantee.IDEMPOTENT

    async def write(self, batch: sdk.Batch) -> None:
        await trio.sleep(0.01)
        for index, record in enumerate(batch.records):
            self.options.kept[batch.delivery_key(index)] = record


@simulated(seeds=range(10))
async def test_what_a_processor_remembers_goes_over_to_its_successor(seed: int) -> None:
    kept: dict[bytes, Record] = {}
    log = EventLog()

    def pipeline(version: str) -> Pipeline:
        def count(record: Record, state: sdk.State) -> Record:
            state.put("seen", state.get("seen", 0) + 1)
            record.payload["count"], record.payload["by"] = state.get("seen"), version
            return record

        return Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=300, bounded=False, log=log), batch_size=4, window=16)],
            processors=[Processor("count", FunctionProcessor(count, state=True))],
            destinations=[Destination("kept", Kept(kept=kept))],
            delivery="exactly_once",
        )

    supervisor = Supervisor(pipeline("old"), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(lambda: len(kept) > 20 + seed or supervisor.state.error is not None)
        assert supervisor.state.error is None
        await supervisor.swap(compile_pipeline(pipeline("new")), ["count"])
        await until(lambda: len(kept) == 300 or supervisor.state.status is not Status.RUNNING)
        supervisor.stop()

    assert [record.payload["count"] for record in kept.values()] == list(range(1, 301))
    versions = [record.payload["by"] for record in kept.values()]
    assert versions == sorted(versions, reverse=True)
    assert set(versions) == {"old", "new"}
