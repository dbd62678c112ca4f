"""Where processors run: workers, instances, threads; and that open and close frame every run."""

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, memory
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Processor, Record, Source, processor, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.plugin_calls import SLOW_SECONDS
from conduit_py.testing import EventLog, Fail, ScriptedDestination, ScriptedSource, position_of


def made(log: EventLog, *processors: Any, records: int = 24, batch_size: int = 12, destination: Any = None) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=log), batch_size=batch_size)],
        processors=processors,
        destinations=[Destination("destination", ScriptedDestination(log=log, **(destination or {})))],
    )


async def run(log: EventLog, *processors: Any, **settings: Any) -> PipelineState:
    state = await Supervisor(made(log, *processors, **settings), MemoryStore()).run()
    log.check()
    return state


class TestWorkers:
    """`workers=n` means n at a time and not more, and nobody downstream can tell."""

    @pytest.mark.parametrize("batch_size", [4, 12])
    async def test_n_are_at_work_at_once_and_order_is_kept(self, batch_size: int, autojump_clock: MockClock) -> None:
        log, busy, most = EventLog(), 0, 0

        async def uneven(record: Record) -> Record:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await trio.sleep((record.payload["n"] * 7) % 5)
            busy -= 1
            return record

        state = await run(log, Processor("uneven", uneven, workers=4), batch_size=batch_size)

        assert state.status is Status.COMPLETED
        assert most == 4
        assert log.numbers() == list(range(24))
        assert log.acked["source"] == [position_of(n) for n in range(24)]

    async def test_they_get_records_of_a_source_that_returns_payloads(self, tmp_path: Path) -> None:
        into: list[Record] = []
        (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))

        @processor(workers=3)
        def double(record: Record) -> Record:
            return Record.of({"n": 2 * record.payload["n"]})

        pipeline = Pipeline(
            "p",
            sources=[Source("source", file.Source(path=tmp_path / "in.jsonl", format="json"))],
            processors=[double],
            destinations=[Destination("destination", memory.Destination(into=into))],
        )
        state = await Supervisor(pipeline, MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert [record.payload["n"] for record in into] == list(range(0, 20, 2))

    async def test_sync_workers_are_threads_that_run_at_the_same_time(self) -> None:
        log = EventLog()
        # Passed only when three records are inside at once.
        barrier = threading.Barrier(3, timeout=300)

        def meet(record: Record) -> Record:
            barrier.wait()
            record.payload["thread"] = threading.get_ident()
            return record

        state = await run(log, Processor("meet", meet, workers=3), records=6, batch_size=6)

        assert state.status is Status.COMPLETED
        assert log.numbers() == list(range(6))
        threads = [delivery.record.payload["thread"] for delivery in log.stored["destination"]]
        assert len(set(threads)) == 3
        assert threading.get_ident() not in threads
        # A worker takes neighbours: what is cut apart is put together again in order.
        assert threads[0::2] == threads[1::2]

    async def test_a_batch_function_sees_the_part_of_its_worker(self, autojump_clock: MockClock) -> None:
        log, parts = EventLog(), []

        @processor(batch=True, workers=4)
        async def note(batch: Batch) -> list[Record]:
            parts.append(list(batch.sequences))
            return batch.records

        await run(log, note, records=10, batch_size=10)

        assert sorted(parts) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        assert log.numbers() == list(range(10))

    async def test_every_worker_has_an_instance_of_its_own(self, autojump_clock: MockClock) -> None:
        class Tagger(sdk.Processor[sdk.Options]):
            made = 0

            async def open(self) -> None:
                type(self).made += 1
                self.tag = type(self).made

            async def process(self, record: Record) -> Record:
                record.payload["tag"] = self.tag
                return record

        log = EventLog()
        await run(log, Processor("tag", Tagger(), workers=3), records=6, batch_size=6)

        assert Tagger.made == 3
        assert [each.record.payload["tag"] for each in log.stored["destination"]] == [1, 1, 2, 2, 3, 3]


class Recorder(sdk.Processor[sdk.Options]):
    """Notes what is called, in which thread, on which instance; `fail` names calls that raise, by instance."""

    calls: list[tuple[str, int, int]]
    fail: dict[str, int]
    instances: list["Recorder"]

    def _note(self, call: str) -> None:
        if not any(each is self for each in self.instances):
            self.instances.append(self)
        number = next(n for n, each in enumerate(self.instances) if each is self)
        self.calls.append((call, number, threading.get_ident()))
        if self.fail.get(call) == number:
            raise OSError(f"{call} of {number} failed")

    def open(self) -> None:
        self._note("open")

    def process(self, record: Record) -> Record:
        self._note("process")
        return record

    def close(self) -> None:
        self._note("close")

    @classmethod
    def called(cls) -> list[tuple[str, int]]:
        return [(call, number) for call, number, _ in cls.calls]


def recorder(*, blocking: bool | None = None, **fail: int) -> Recorder:
    class Own(Recorder):
        calls: list[tuple[str, int, int]] = []  # noqa: RUF012
        instances: list[Recorder] = []  # noqa: RUF012

    Own.fail = fail
    Own.blocking = blocking
    return Own()


class TestOpenAndClose:
    """Once each per run and instance, close also after an open that failed, never without an open."""

    async def test_frame_the_records_of_a_run(self) -> None:
        plugin = recorder()
        await run(EventLog(), Processor("recorder", plugin, workers=2), records=2, batch_size=2)

        assert plugin.called()[:2] == [("open", 0), ("open", 1)]
        assert sorted(plugin.called()[2:4]) == [("process", 0), ("process", 1)]
        assert sorted(plugin.called()[4:]) == [("close", 0), ("close", 1)]

    async def test_are_called_once_when_the_run_fails(self) -> None:
        plugin = recorder()
        log = EventLog()
        state = await run(log, plugin, records=4, batch_size=4, destination={"script": {2: Fail("down")}})

        assert state.status is Status.DEGRADED
        assert plugin.called() == [("open", 0), *[("process", 0)] * 4, ("close", 0)]

    async def test_when_open_fails_that_instance_is_closed_and_later_ones_are_not_touched(self) -> None:
        plugin = recorder(open=1)
        log = EventLog()
        state = await run(log, Processor("recorder", plugin, workers=3))

        assert state.error is not None
        assert state.error.message == "recorder: open failed: OSError: open of 1 failed"
        assert plugin.called()[:2] == [("open", 0), ("open", 1)]
        assert sorted(plugin.called()[2:]) == [("close", 0), ("close", 1)]
        assert log.read["source"] == []

    async def test_when_one_close_fails_the_others_are_closed_all_the_same(self) -> None:
        plugin = recorder(close=0)
        state = await run(EventLog(), Processor("recorder", plugin, workers=3), records=3, batch_size=3)

        assert state.error is not None
        assert state.error.message == "recorder: close failed: OSError: close of 0 failed"
        assert sorted(plugin.called()[-3:]) == [("close", 0), ("close", 1), ("close", 2)]


class TestThreads:
    """A sync processor runs in the event loop while it is quick, else in one thread."""

    @pytest.mark.parametrize("blocking", [None, True])
    async def test_one_that_opens_something_has_one_thread_for_everything(self, blocking: bool | None) -> None:
        plugin = recorder(blocking=blocking)
        await run(EventLog(), plugin, records=6, batch_size=2)

        [thread] = {thread for _, _, thread in plugin.calls}
        assert thread != threading.get_ident()
        assert len(plugin.calls) == 8

    async def test_one_that_says_it_does_not_block_is_never_moved(self) -> None:
        plugin = recorder(blocking=False)
        await run(EventLog(), plugin, records=6, batch_size=2)

        assert {thread for _, _, thread in plugin.calls} == {threading.get_ident()}
        assert plugin.called()[-1] == ("close", 0)

    async def test_one_that_does_not_block_has_a_thread_for_everything_when_it_has_workers(self) -> None:
        plugin = recorder(blocking=False)
        await run(EventLog(), Processor("recorder", plugin, workers=2), records=6, batch_size=2)

        for number in (0, 1):
            assert len({thread for _, instance, thread in plugin.calls if instance == number}) == 1
        assert threading.get_ident() not in {thread for _, _, thread in plugin.calls}

    async def test_a_quick_function_stays_in_the_event_loop(self) -> None:
        calls: list[tuple[float, int]] = []

        def quick(record: Record) -> Record:
            calls.append((time.perf_counter(), threading.get_ident()))
            return record

        await run(EventLog(), quick, records=60, batch_size=2)

        # A machine that pauses makes any function slow; what comes before the first pause is quick.
        pauses = [later - earlier > SLOW_SECONDS / 2 for (earlier, _), (later, _) in itertools.pairwise(calls)]
        quick_calls = calls[: pauses.index(True)] if True in pauses else calls
        assert {thread for _, thread in quick_calls} <= {threading.get_ident()}
        assert calls[0][1] == threading.get_ident()

    async def test_a_slow_function_is_moved_to_a_thread_after_its_first_batch(self) -> None:
        log, threads = EventLog(), []

        def slow(record: Record) -> Record | None:
            threads.append(threading.get_ident())
            if record.payload["n"] == 0:
                time.sleep(0.06)
            return None if record.payload["n"] % 3 == 0 else record

        state = await run(log, slow, records=6, batch_size=2)

        assert state.status is Status.COMPLETED
        assert log.numbers() == [1, 2, 4, 5]
        assert threads[0] == threading.get_ident()
        [moved] = set(threads[2:])
        assert moved != threading.get_ident()

    async def test_no_thread_outlives_the_run(self) -> None:
        before = set(threading.enumerate())
        await run(EventLog(), Processor("recorder", recorder(), workers=3), Processor("meet", lambda r: r, workers=2))
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            await trio.to_thread.run_sync(thread.join, 300)

        assert not any(thread.is_alive() for thread in left if thread.name.startswith("conduit-"))
