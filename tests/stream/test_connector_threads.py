"""Connectors with sync methods: they run in threads of their node, and none of them can hold up a stop."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Answer, Batch, EndOfSource, MessageId
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.signal import TURN_SECONDS
from conduit_py.testing import position_of


class Calls:
    """Which methods were called in which threads, and gates on which calls wait until they are released."""

    def __init__(self) -> None:
        self.made: list[tuple[str, threading.Thread]] = []
        self.released = threading.Event()
        self.waiting = threading.Event()
        self.acked = threading.Event()
        self.returned = False

    def note(self, name: str) -> None:
        self.made.append((name, threading.current_thread()))

    def threads(self, *names: str) -> set[threading.Thread]:
        return {thread for name, thread in self.made if name in names}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]

    def wait_for_release(self) -> None:
        self.waiting.set()
        assert self.released.wait(300)
        self.returned = True


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    # Whatever a test left stuck must not outlive it.
    calls.released.set()


class Shared:
    """A connector that stays the same object from run to run, so that a test can look into it."""

    calls: Calls

    def with_calls(self, calls: Calls) -> Any:
        self.calls = calls
        return self

    def fresh(self) -> Any:
        return self


class SyncSource(Shared, sdk.SourceConnector[sdk.Options]):
    """Counts to `records`; then ends, or waits for its stop."""

    records = 5
    waits_at: int | None = None

    def open(self, position: bytes | None) -> None:
        self.calls.note("open")
        self.next = 0
        self.acked: list[bytes] = []

    def read(self, n: int) -> list[Record]:
        self.calls.note("read")
        if self.next == self.waits_at:
            self.calls.wait_for_release()
            raise EndOfSource
        if self.next == self.records:
            raise EndOfSource
        self.next += 1
        return [Record.of({"n": self.next - 1}, position=position_of(self.next - 1))]

    def ack(self, positions: Sequence[bytes]) -> None:
        self.calls.note("ack")
        self.acked += positions
        if len(self.acked) == self.waits_at:
            self.calls.acked.set()

    def teardown(self) -> None:
        self.calls.note("teardown")


class StoppedSource(SyncSource):
    """A `stop` of its own releases the waiting read."""

    def stop(self) -> None:
        self.calls.note("stop")
        self.calls.released.set()


class SyncDestination(Shared, sdk.DestinationConnector[sdk.Options]):
    """Takes everything; the write number `stuck_at` waits for its release."""

    stuck_at: int | None = None
    written = 0

    def open(self) -> None:
        self.calls.note("open")

    def write(self, batch: Batch) -> None:
        self.calls.note("write")
        if self.written == self.stuck_at:
            self.calls.wait_for_release()
        self.written += 1

    def flush(self) -> None:
        self.calls.note("flush")

    def teardown(self) -> None:
        self.calls.note("teardown")


class FlushedDestination(SyncDestination):
    acks = AckMode.FLUSH


class LaterDestination(SyncDestination):
    """Answers in another thread than it writes in."""

    acks = AckMode.LATER

    def with_calls(self, calls: Calls) -> Any:
        self.pending: queue.SimpleQueue[MessageId] = queue.SimpleQueue()
        return super().with_calls(calls)

    def write(self, batch: Batch) -> None:
        super().write(batch)
        for message in batch.ids:
            self.pending.put(message)

    def answers(self) -> list[Answer]:
        self.calls.note("answers")
        return [Answer(self.pending.get(timeout=300))]


def made(
    source: sdk.SourceConnector[Any], destination: sdk.DestinationConnector[Any], *, stop_seconds: float = 30
) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("source", source, batch_size=2)],
        destinations=[Destination("lake", destination)],
        stop_seconds=stop_seconds,
    )


async def until(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, 300, abandon_on_cancel=True)


@pytest.mark.parametrize("destination", [SyncDestination, FlushedDestination, LaterDestination])
async def test_all_calls_of_a_node_are_in_one_thread(calls: Calls, destination: type[SyncDestination]) -> None:
    at_end = Calls()
    source, lake = SyncSource().with_calls(calls), destination().with_calls(at_end)
    state = await Supervisor(made(source, lake), MemoryStore()).run()

    assert state.status is Status.COMPLETED
    assert source.acked == [position_of(n) for n in range(5)]
    [reading] = calls.threads("open", "read", "teardown")
    [acking] = calls.threads("ack")
    [writing] = at_end.threads("open", "write", "flush", "teardown")
    assert len({reading, acking, writing, threading.current_thread()}) == 4
    assert at_end.threads("answers") & {reading, acking, writing, threading.current_thread()} == set()
    assert (calls.names[0], calls.names[-1]) == ("open", "teardown")
    assert (at_end.names[0], at_end.names[-1]) == ("open", "teardown")


async def test_no_thread_of_a_connector_outlives_the_run(calls: Calls) -> None:
    before = set(threading.enumerate())
    shelf = SyncDestination().with_calls(Calls())
    pipeline = made(SyncSource().with_calls(calls), LaterDestination().with_calls(Calls()))
    pipeline.dead_letters = DeadLetters(shelf)
    await Supervisor(pipeline, MemoryStore()).run()

    left = [each for each in set(threading.enumerate()) - before if each.name.startswith("conduit-")]
    for thread in left:
        await trio.to_thread.run_sync(thread.join, 10)
    assert not any(thread.is_alive() for thread in left)


async def test_an_ack_does_not_wait_for_a_read_that_waits(calls: Calls) -> None:
    source = SyncSource().with_calls(calls)
    source.waits_at = 3
    supervisor = Supervisor(made(source, SyncDestination().with_calls(Calls())), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await until(calls.waiting)
        await until(calls.acked)
        calls.released.set()

    assert source.acked == [b"0", b"1", b"2"]


class TestStop:
    """What blocks in a thread is released by `stop`, or left behind."""

    async def test_a_graceful_stop_releases_a_waiting_read_by_its_stop(self, calls: Calls) -> None:
        source = StoppedSource().with_calls(calls)
        source.waits_at = 3
        supervisor = Supervisor(made(source, SyncDestination().with_calls(Calls())), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until(calls.waiting)
            supervisor.stop()

        assert supervisor.state.status is Status.STOPPED
        assert supervisor.state.error is None
        assert source.acked == [b"0", b"1", b"2"]
        assert calls.names.count("stop") == 1
        assert calls.names[-1] == "teardown"
        # Not in the thread that waits, nor in the event loop, which it might block.
        assert not calls.threads("stop") & (calls.threads("read") | {threading.current_thread()})

    @pytest.mark.parametrize("graceful", [True, False])
    async def test_a_read_that_nothing_releases_is_left_behind(self, graceful: bool, calls: Calls) -> None:
        source, store = SyncSource().with_calls(calls), MemoryStore()
        source.waits_at = 3
        lake = SyncDestination().with_calls(Calls())
        supervisor = Supervisor(made(source, lake, stop_seconds=0.2), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until(calls.waiting)
            supervisor.stop() if graceful else supervisor.force()

        assert not calls.returned
        assert supervisor.state.status is Status.STOPPED
        assert (supervisor.state.error is not None) == graceful
        assert not calls.released.is_set()
        assert "teardown" in lake.calls.names

    async def test_a_write_that_is_stuck_is_left_behind_by_force_and_acks_nothing_more(self, calls: Calls) -> None:
        source = SyncSource().with_calls(Calls())
        lake = SyncDestination().with_calls(calls)
        lake.stuck_at = 1
        store = MemoryStore()
        supervisor = Supervisor(made(source, lake), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until(calls.waiting)
            supervisor.force()
        left_behind = not calls.returned
        acked = list(source.acked)
        calls.released.set()
        [thread] = calls.threads("write")
        await trio.to_thread.run_sync(thread.join, 300)

        assert left_behind
        assert supervisor.state.status is Status.STOPPED
        assert not thread.is_alive()
        assert source.acked == acked
        assert set(acked) <= {b"0", b"1"}
        assert "teardown" in source.calls.names
        # Late, but what was opened is released.
        assert calls.names == ["open", "write", "write", "teardown"]

    async def test_answers_that_never_come_do_not_hold_up_a_force(self, calls: Calls) -> None:
        class Mute(LaterDestination):
            def answers(self) -> list[Answer]:
                self.calls.wait_for_release()
                return []

        source = SyncSource().with_calls(Calls())
        supervisor = Supervisor(made(source, Mute().with_calls(calls)), MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until(calls.waiting)
            supervisor.force()

        assert not calls.returned
        assert source.acked == []
        assert "teardown" in calls.names


class TestBlocking:
    """A connector may say that it does not block, or that it does not know."""

    @pytest.mark.parametrize("blocking", [False, None])
    async def test_quick_reads_and_writes_run_in_the_event_loop(self, blocking: bool | None, calls: Calls) -> None:
        class QuickSource(SyncSource):
            pass

        class QuickDestination(SyncDestination):
            pass

        QuickSource.blocking = QuickDestination.blocking = blocking
        at_end = Calls()
        source = QuickSource().with_calls(calls)
        state = await Supervisor(made(source, QuickDestination().with_calls(at_end)), MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert source.acked == [position_of(n) for n in range(5)]
        here = {threading.current_thread()}
        assert calls.threads("read") == at_end.threads("write") == here
        # What must not mind the thread is said by None; False says that nothing of it blocks.
        others = calls.threads("open", "ack", "teardown") | at_end.threads("open", "flush", "teardown")
        assert others == here if blocking is False else not others & here

    async def test_reads_that_prove_slow_again_and_again_are_moved_to_a_thread(self, calls: Calls) -> None:
        class SlowSource(SyncSource):
            blocking = None
            records = 8

            def read(self, n: int) -> list[Record]:
                time.sleep(0.2 if self.next in (0, 2, 3, 4) else 0)
                return super().read(n)

        source = SlowSource().with_calls(calls)
        await Supervisor(made(source, SyncDestination().with_calls(Calls())), MemoryStore()).run()

        threads = [thread is threading.current_thread() for name, thread in calls.made if name == "read"]
        # The first is slow once; three in a row are too many.
        assert threads[:3] == [True] * 3
        assert threads[5:] == [False] * 4
        assert source.acked == [position_of(n) for n in range(8)]

    async def test_a_lone_record_does_not_wait_until_the_batch_is_full(self, calls: Calls) -> None:
        """Calls in the event loop give the others their turn in between, though not after each: every millisecond."""
        sizes = []

        class QuickSource(SyncSource):
            blocking = False
            records = 6

            def read(self, n: int) -> list[Record]:
                time.sleep(2 * TURN_SECONDS)
                return super().read(n)

        class Sizing(sdk.DestinationConnector[sdk.Options]):
            async def write(self, batch: Batch) -> None:
                sizes.append(len(batch))

        pipeline = made(QuickSource().with_calls(calls), Sizing())
        pipeline.sources[0].settings = pipeline.sources[0].settings.model_copy(update={"batch_size": 6})
        await Supervisor(pipeline, MemoryStore()).run()

        assert sum(sizes) == 6
        assert sizes[0] < 6


async def test_an_error_in_a_thread_names_the_node_and_the_call(calls: Calls) -> None:
    class Failing(SyncDestination):
        def write(self, batch: Batch) -> None:
            raise StopIteration("even this")

    state = await Supervisor(made(SyncSource().with_calls(calls), Failing().with_calls(Calls())), MemoryStore()).run()

    assert state.error is not None
    assert state.error.node == "lake"
    assert state.error.code == "node.failed"
    assert state.error.message.startswith("lake: write failed: ")
