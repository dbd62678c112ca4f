"""An error may say how long the other system wants to be left alone: retries and recovery wait so long."""

import math

import pytest
import trio
from trio.testing import MockClock

from conduit_py import Batch, Destination, Pipeline, Processor, Record, Recovery, Retry, Source, processor, sdk
from conduit_py.backoff import delay_after
from conduit_py.errors import TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

busy: list[float] = []


def refuse_once(seconds: float) -> None:
    """Raise at the first call of a test, with the time of the answer `429`."""
    busy.append(trio.current_time())
    if len(busy) == 1:
        raise TransientError("too many requests", retry_after=seconds)


class Limited(sdk.DestinationConnector[sdk.Options]):
    """Is busy at first."""

    async def write(self, batch: Batch) -> None:
        refuse_once(70)


async def run(pipeline: Pipeline, recovery: Recovery | None = None) -> None:
    busy.clear()
    state = await Supervisor(pipeline, MemoryStore(), recovery=recovery).run()
    assert state.status is Status.COMPLETED


def sources() -> list[Source]:
    return [Source("source", ScriptedSource(records=2, log=EventLog()))]


async def test_the_retry_of_a_destination_waits_as_long_as_it_was_asked_to(autojump_clock: MockClock) -> None:
    await run(Pipeline("p", sources=sources(), destinations=[Destination("api", Limited(), retry=Retry(attempts=2))]))

    assert busy == [0, 70]


async def test_the_retry_of_a_processor_waits_as_long_as_it_was_asked_to(autojump_clock: MockClock) -> None:
    @processor
    async def enrich(record: Record) -> Record:
        refuse_once(70)
        return record

    lake = Destination("lake", ScriptedDestination(name="lake"))
    processors = [Processor("enrich", enrich, retry=Retry(attempts=2))]
    await run(Pipeline("p", sources=sources(), processors=processors, destinations=[lake]))

    assert busy[0] == 0
    assert busy[-1] == 70


async def test_recovery_waits_as_long_as_it_was_asked_to(autojump_clock: MockClock) -> None:
    pipeline = Pipeline("p", sources=sources(), destinations=[Destination("api", Limited())])
    await run(pipeline, Recovery(delay_seconds=1))

    assert busy == [0, 70]


@pytest.mark.parametrize(
    ("asked_for", "delay"), [(None, 2), (1.0, 2), (30.0, 30), (1e12, 3600), (math.inf, 3600), (math.nan, 2), (-5.0, 2)]
)
def test_the_longer_of_both_counts_but_at_most_an_hour(asked_for: float | None, delay: float) -> None:
    assert delay_after(TransientError("busy", retry_after=asked_for), 2) == delay
    assert delay_after(ValueError("busy"), 2) == 2
