"""The memory connector and the log destination: small, so that tests and examples can trust them."""

import logging
from typing import Any

import pytest
from conduit_connectors import log, memory
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Source
from conduit_py.record import Payload, Record
from conduit_py.sdk import EndOfSource, FatalError, NothingYet
from conduit_py.testing import run_to_end
from conduit_py.testing.connector_driver import batch_of


async def read(source: memory.Source, n: int, position: bytes | None = None) -> list[Record]:
    await source.open(position)
    return await source.read(n)


async def test_records_and_payloads_become_records_with_positions(autojump_clock: MockClock) -> None:
    given = Record(b"ignored", metadata={"m": "1"}, key=b"k", payload=Payload(b"before", b"after"))

    records = await read(memory.Source(records=[{"n": 1}, b"raw", None, given]), 10)

    assert records == [
        Record.of({"n": 1}, position=b"memory:1:0"),
        Record.of(b"raw", position=b"memory:1:1"),
        Record.of(None, position=b"memory:1:2"),
        Record(b"memory:1:3", metadata={"m": "1"}, key=b"k", payload=Payload(b"before", b"after")),
    ]


async def test_what_is_read_shares_nothing_with_the_list(autojump_clock: MockClock) -> None:
    given: list[Any] = [{"n": [1]}, Record.of({"n": [1]})]

    for record in await read(memory.Source(records=given), 10):
        record.payload["n"].append(2)
        record.metadata["changed"] = "yes"

    assert given == [{"n": [1]}, Record.of({"n": [1]})]


async def test_it_goes_on_after_a_position_and_ends(autojump_clock: MockClock) -> None:
    source = memory.Source(records=[b"0", b"1", b"2"])

    [one] = await read(source, 1, b"memory:1:0")
    [two] = await source.read(9)
    with pytest.raises(EndOfSource):
        await source.read(1)

    assert [one.payload.after, two.payload.after] == [b"1", b"2"]


async def test_an_unbounded_list_is_waited_for_and_may_grow(autojump_clock: MockClock) -> None:
    records: list[Any] = []
    source = memory.Source(records=records, bounded=False)
    with pytest.raises(NothingYet):
        await read(source, 1)

    records.append(b"late")

    assert [record.payload.after for record in await source.read(9)] == [b"late"]


async def test_a_fresh_connector_sees_the_same_list(autojump_clock: MockClock) -> None:
    records: list[Any] = []
    into: list[Record] = []
    source, destination = memory.Source(records=records), memory.Destination(into=into)
    records.append(b"one")

    copy = source.fresh()
    assert isinstance(copy, memory.Source)
    other = destination.fresh()
    assert isinstance(other, memory.Destination)
    read_from_copy = await read(copy, 9)
    await other.write(batch_of(read_from_copy))

    assert into == read_from_copy == [Record.of(b"one", position=b"memory:1:0")]


async def test_a_position_of_another_connector_is_an_error(autojump_clock: MockClock) -> None:
    with pytest.raises(FatalError, match="b'x' is not a position of the memory source"):
        await read(memory.Source(records=[]), 1, b"x")


def test_only_lists_will_do() -> None:
    problems = memory.Source(records=({},)).problems + memory.Destination(into={}).problems  # type: ignore[arg-type]

    assert [(problem.path, problem.message) for problem in problems] == [
        ("records", "Input should be an instance of list"),
        ("into", "Input should be an instance of list"),
    ]


async def test_a_pipeline_runs_from_list_to_list(autojump_clock: MockClock) -> None:
    into: list[Record] = []
    pipeline = Pipeline(
        "copy",
        sources=[Source("in", memory.Source(records=[{"n": number} for number in range(1000)]))],
        destinations=[Destination("out", memory.Destination(into=into))],
    )

    await run_to_end(pipeline)

    assert [record.payload["n"] for record in into] == list(range(1000))


def test_each_record_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "conduit_py.log")
    good = [Record.of({"text": "x" * 100_000}, position=b"1"), Record.of(b"raw %s", position=b"2")]

    refused = log.Destination(level="warning", message="got").write(
        batch_of([good[0], Record.of({"n": float("nan")}, position=b"3"), good[1]])
    )

    assert refused == {1: "cannot be written as JSON: payload.after.n is nan"}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"got {record.to_json().decode()}") for record in good
    ]


def test_at_a_level_that_is_off_nothing_is_encoded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "conduit_py.log")
    batch = batch_of([Record.of({"n": float("nan")})])

    assert log.Destination(level="info").write(batch) == {}
    assert list(log.Destination(level="warning").write(batch)) == [0]


def test_levels_are_those_of_logging() -> None:
    assert [problem.path for problem in log.Destination(level="loud").problems] == ["level"]  # type: ignore[arg-type]
