"""Code for asyncio in a plugin: async functions run on trio, and the error says so at the first call."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from conduit_connectors import memory
from trio.testing import MockClock

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    RecordRefused,
    Recovery,
    Retry,
    Source,
    processor,
    sdk,
)
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.owned_thread import AsyncioCall
from conduit_py.sdk import Batch, DestinationConnector, EndOfSource, Options, SourceConnector
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore


async def sleep(record: Record) -> Record:
    await asyncio.sleep(1)
    return record


async def yield_to_others(record: Record) -> Record:
    await asyncio.sleep(0)
    return record


async def wait_for_a_future(record: Record) -> Record:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()
    return record


async def wrap(record: Record) -> Record:
    try:
        return await sleep(record)
    except RuntimeError as error:
        raise RecordRefused("could not be enriched") from error


class Asleep(DestinationConnector[Options]):
    """Waits with asyncio before it writes."""

    async def write(self, batch: Batch) -> None:
        await asyncio.sleep(1)


class Drowsy(SourceConnector[Options]):
    """Waits with asyncio before it reads."""

    async def open(self, position: bytes | None) -> None:
        return

    async def read(self, n: int) -> list[Record]:
        await asyncio.sleep(1)
        raise EndOfSource


async def run(*, source: Any = None, processors: Any = (), destination: Any = None) -> PipelineState:
    pipeline = Pipeline(
        "p",
        sources=[Source("in", source or memory.Source(records=[{"n": n} for n in range(3001)]))],
        processors=processors,
        destinations=[Destination("out", destination or memory.Destination(into=[]))],
        dead_letters=DeadLetters.keep(window_size=0),
    )
    return await Supervisor(pipeline, MemoryStore(), recovery=Recovery(delay_seconds=1, retries=5)).run()


def check(state: PipelineState, node: str) -> None:
    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node) == ("plugin.asyncio", node)
    assert state.error.message.startswith("async functions run on trio, and asyncio was called: ")
    assert "httpx2" in str(state.error.suggestion)
    assert "asyncio=True" in str(state.error.suggestion)


@pytest.mark.parametrize("function", [sleep, yield_to_others, wait_for_a_future, wrap])
@pytest.mark.parametrize("retry", [Retry(attempts=1), Retry(attempts=5)])
async def test_a_processor_that_calls_asyncio_stops_the_pipeline(
    function: Callable[[Record], Awaitable[Record]], retry: Retry, autojump_clock: MockClock
) -> None:
    check(await run(processors=[Processor("enrich", function, retry=retry)]), "enrich")


async def test_a_destination_that_calls_asyncio_is_not_tried_again(autojump_clock: MockClock) -> None:
    check(await run(destination=Asleep()), "out")


async def test_a_source_that_calls_asyncio_is_not_tried_again(autojump_clock: MockClock) -> None:
    check(await run(source=Drowsy()), "in")


async def test_a_plain_function_may_run_asyncio_itself(autojump_clock: MockClock) -> None:
    def enrich(record: Record) -> Record:
        asyncio.run(asyncio.sleep(0))
        return record

    state = await run(
        source=memory.Source(records=[{"n": 1}, {"n": 2}]), processors=[Processor("enrich", enrich, workers=2)]
    )

    assert state.status is Status.COMPLETED


async def test_an_error_that_is_its_own_cause_is_a_nack_as_any_other(autojump_clock: MockClock) -> None:
    def spin(record: Record) -> Record:
        error = ValueError("round and round")
        raise error from error

    state = await run(source=memory.Source(records=[{"n": 1}]), processors=[Processor("spin", spin)])

    assert state.status is Status.COMPLETED


async def test_functions_run_on_the_loop_of_asyncio_in_order_with_workers_and_retries(
    autojump_clock: MockClock,
) -> None:
    loops: set[asyncio.AbstractEventLoop] = set()
    failed: set[int] = set()

    @processor(asyncio=True, workers=3, retry=Retry(attempts=2, delay_seconds=0.001))
    async def enrich(payload: dict[str, Any]) -> dict[str, Any]:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.0001 * (payload["n"] % 3))
        if payload["n"] % 7 == 0 and payload["n"] not in failed:
            failed.add(payload["n"])
            raise OSError("once")
        return {**payload, "seen": True}

    into: list[Any] = []
    state = await run(
        source=memory.Source(records=[{"n": n} for n in range(40)]),
        processors=[enrich],
        destination=memory.Destination(into=into),
    )

    assert state.status is Status.COMPLETED
    assert [record.payload.after for record in into] == [{"n": n, "seen": True} for n in range(40)]
    assert len(failed) == 6
    assert len(loops) == 1


class Session(sdk.Processor[Options]):
    """Has a resource that belongs to the loop of asyncio."""

    async def open(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._loop = asyncio.get_running_loop()

    async def process_batch(self, batch: Batch) -> list[Record | Exception]:
        async with self._turn:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is self._loop
        return [record if record.payload.after["n"] else ValueError("zero") for record in batch]  # type: ignore[index, call-overload]

    async def close(self) -> None:
        assert asyncio.get_running_loop() is self._loop


async def test_a_class_runs_on_asyncio_where_the_pipeline_says_so() -> None:
    session, into = Session(), []  # type: ignore[var-annotated]

    state = await run(
        source=memory.Source(records=[{"n": n} for n in range(5)]),
        processors=[Processor("session", session, asyncio=True)],
        destination=memory.Destination(into=into),
    )

    assert state.status is Status.COMPLETED
    assert [record.payload.after["n"] for record in into] == [1, 2, 3, 4]
    # The object itself is as it was: elsewhere it may run on trio.
    assert not session.asyncio


async def test_an_exit_in_a_task_of_asyncio_ends_neither_the_process_nor_the_loop() -> None:
    @processor(asyncio=True)
    async def leave(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["n"] == 0:
            raise SystemExit(3)
        return payload

    into: list[Any] = []
    state = await run(
        source=memory.Source(records=[{"n": 0}, {"n": 1}]),
        processors=[leave],
        destination=memory.Destination(into=into),
    )

    assert state.status is Status.COMPLETED
    assert [record.payload.after["n"] for record in into] == [1]


async def test_a_cancelled_call_returns_at_once_and_is_cancelled_on_asyncio() -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with trio.move_on_after(0.05):
        await AsyncioCall(wait)()

    assert await trio.to_thread.run_sync(cancelled.wait, 60)


def test_asyncio_is_for_async_functions() -> None:
    (problem,) = Processor("plain", lambda record: record, asyncio=True).problems

    assert (problem.path, problem.message) == ("asyncio", "is for async functions, and this one is not")
