"""Code for asyncio in a plugin: async functions run on trio, and the error says so at the first call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conduit_connectors import memory
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, RecordRefused, Recovery, Retry, Source
from conduit_py.lifecycle.supervisor import Supervisor
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
