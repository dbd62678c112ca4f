"""The harness: run a pipeline and see how it stands; rehearse one without its real ends."""

import time
from typing import Any

import pytest
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, FatalError, Pipeline, Record, RecordRefused, Source, State, processor
from conduit_py.pipeline import as_processor
from conduit_py.sdk import Batch, Options, Processor
from conduit_py.sdk import DestinationConnector as DestinationConnector
from conduit_py.sdk import SourceConnector as SourceConnector
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing.event_log import EventLog, numbered_record
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage
from conduit_py.testing.harness import rehearse, run_to_end
from conduit_py.testing.script import Fail, Refuse
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource
from conduit_py.testing.simulation import simulate


def pipeline(source: dict[str, Any], destination: dict[str, Any], **more: Any) -> Pipeline:
    log = EventLog()
    return Pipeline(
        "p",
        sources=[Source("in", ScriptedSource(log=log, **source))],
        destinations=[Destination("out", ScriptedDestination(log=log, **destination))],
        **more,
    )


async def test_the_outcome_of_a_run_that_completes(autojump_clock: MockClock) -> None:
    outcome = await run_to_end(pipeline(dict(records=3), {}))

    assert (outcome.status, outcome.error) == (Status.COMPLETED, None)
    assert outcome.positions == {"in": b"2"}
    assert outcome.acks == {"in": [b"0", b"1", b"2"]}
    assert outcome.payloads("out") == [numbered_record(number).payload.after for number in range(3)]
    assert (outcome.progress.read, outcome.progress.acked) == (3, 3)
    assert outcome.dead_letters == []


async def test_the_outcome_of_a_run_that_fails(autojump_clock: MockClock) -> None:
    outcome = await run_to_end(pipeline(dict(records=3, script={1: Fail("no disk", FatalError)}), {}))

    assert outcome.status is Status.DEGRADED
    assert outcome.error is not None
    assert (outcome.error.message, outcome.error.node) == ("no disk", "in")


async def test_a_second_run_with_the_same_store_goes_on(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    failing = pipeline(dict(records=4), dict(script={2: Fail("once")}))

    first = await run_to_end(failing, store)
    second = await run_to_end(failing, store)

    assert (first.status, second.status) == (Status.DEGRADED, Status.COMPLETED)
    assert second.acks["in"] == [b"0", b"1", b"2", b"3"]


async def test_dead_letters_are_in_the_outcome(autojump_clock: MockClock) -> None:
    letters = DeadLetters(ScriptedDestination(name="letters"), window_size=9, window_nack_threshold=5)

    outcome = await run_to_end(pipeline(dict(records=3), dict(script={1: Refuse("bad")}), dead_letters=letters))

    assert outcome.status is Status.COMPLETED
    assert [letter.payload["error"] for letter in outcome.dead_letters] == ["bad"]


async def test_violations_are_raised(autojump_clock: MockClock) -> None:
    broken = pipeline(dict(records=1), {})
    broken.destinations[0].connector.log.violation("out", "made up")

    with pytest.raises(AssertionError, match="out: made up"):
        await run_to_end(broken)


async def test_an_end_that_is_never_torn_down_is_a_violation(autojump_clock: MockClock) -> None:
    log = EventLog()
    await ScriptedSource(log=log, name="lost").open(None)
    with pytest.raises(AssertionError, match="lost: was opened and never torn down"):
        log.check(after_run=True)


class Remote(Options):
    url: str


class RemoteSource(SourceConnector[Remote]):
    def read(self, n: int) -> list[Record]:
        raise AssertionError("the real source was read")


class RemoteDestination(DestinationConnector[Remote]):
    def write(self, batch: Batch) -> None:
        raise AssertionError("the real destination was written to")


@processor
def cents(record: Record) -> Record | None:
    if record.payload["amount"] < 0:
        raise RecordRefused("negative")
    if record.payload["amount"] == 0:
        return None
    record.payload["cents"] = record.payload["amount"] * 100
    return record


def orders(dead_letters: DeadLetters | None = None) -> Pipeline:
    return Pipeline(
        "orders",
        sources=[Source("web", RemoteSource(url="https://…")), Source("shop", RemoteSource(url="https://…"))],
        processors=[cents],
        destinations=[
            Destination("lake", RemoteDestination(url="s3://…")),
            Destination("big", RemoteDestination(url="s3://…"), when=lambda record: record.payload["amount"] > 5),
        ],
        dead_letters=dead_letters,
    )


def test_a_rehearsal_runs_processors_and_routing_only() -> None:
    letters = DeadLetters(RemoteDestination(url="s3://…"), window_size=10, window_nack_threshold=2)
    given = {"web": [{"amount": 1}, {"amount": -1}, Record.of({"amount": 0}), {"amount": 7}]}

    outcome = simulate(rehearse, orders(letters), given)

    assert outcome.status is Status.COMPLETED
    assert outcome.payloads("lake") == [{"amount": 1, "cents": 100}, {"amount": 7, "cents": 700}]
    assert outcome.payloads("big") == [{"amount": 7, "cents": 700}]
    assert [(letter.payload["node"], letter.payload["error"]) for letter in outcome.dead_letters] == [
        ("cents", "negative")
    ]


def test_a_rehearsal_stops_where_the_pipeline_would() -> None:
    outcome = simulate(rehearse, orders(), {"web": [{"amount": -1}]})

    assert outcome.status is Status.DEGRADED


def test_a_rehearsal_leaves_the_pipeline_as_it_is() -> None:
    real = orders()
    simulate(rehearse, real, {})

    assert isinstance(real.sources[0].connector, RemoteSource)
    assert isinstance(real.destinations[0].connector, RemoteDestination)


class SlowToOpen(Processor[Options]):
    """Runs in a thread, as every sync processor does that opens something."""

    def open(self) -> None:
        time.sleep(0.05)

    def process(self, record: Record) -> Record:
        return record


def test_a_rehearsal_waits_for_processors_in_threads() -> None:
    threaded = orders()
    threaded.processors.append(as_processor(SlowToOpen()))

    outcome = simulate(rehearse, threaded, {"web": [{"amount": 1}]})

    assert outcome.payloads("lake") == [{"amount": 1, "cents": 100}]


def test_a_rehearsal_has_its_sources() -> None:
    with pytest.raises(ValueError, match="there are no sources wep in pipeline orders; it has web, shop"):
        simulate(rehearse, orders(), {"wep": []})


async def test_an_exactly_once_pipeline_is_rehearsed_with_its_state(autojump_clock: MockClock) -> None:
    @processor(state=True)
    def counted(record: Record, state: State) -> Record:
        state.put("count", state.get("count", 0) + 1)
        if record.payload["n"] == 2:
            raise RecordRefused("not two")
        record.payload["count"] = state.get("count")
        return record

    declared = Pipeline(
        "p",
        sources=[Source("in", ScriptedSource(records=0))],
        processors=[counted],
        destinations=[Destination("out", FakeStagedDestination(storage=FakeStorage()))],
        dead_letters=DeadLetters("journal"),
        delivery="exactly_once",
    )
    outcome = await rehearse(declared, {"in": [{"n": 1}, {"n": 2}, {"n": 3}]})

    assert outcome.status is Status.COMPLETED, outcome.error
    assert outcome.payloads("out") == [{"n": 1, "count": 1}, {"n": 3, "count": 2}]
    assert len(outcome.dead_letters) == 1
