"""The generator source: the same records every time, at the chosen pace, on virtual time."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import generator
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from conduit_py.record import Operation, Record
from conduit_py.sdk import Columns, EndOfSource, FatalError


@asynccontextmanager
async def open_source(position: bytes | None = None, **options: Any) -> AsyncIterator[generator.Source]:
    source = generator.Source(**options)
    await source.open(position)
    yield source


async def read_all(source: generator.Source, n: int) -> list[Record]:
    records: list[Record] = []
    while True:
        try:
            records += await source.read(n)
        except EndOfSource:
            return records


async def read_with_times(source: generator.Source) -> list[tuple[float, int]]:
    """When records came, and how many."""
    found: list[tuple[float, int]] = []
    while True:
        try:
            count = len(await source.read(100))
        except EndOfSource:
            return found
        found.append((trio.current_time(), count))


async def generate(position: bytes | None = None, n: int = 100, **options: Any) -> list[Record]:
    async with open_source(position, **options) as source:
        return await read_all(source, n)


def run(position: bytes | None = None, n: int = 100, **options: Any) -> list[Record]:
    return trio.run(lambda: generate(position, n, **options))


ALL_TYPES = {
    "index": "index",
    "int": "int",
    "float": "float",
    "string": "string",
    "bool": "bool",
    "time": "time",
    "duration": "duration",
}


async def test_records_are_the_same_in_every_process() -> None:
    [first, *_, last] = await generate(fields=ALL_TYPES, count=300, seed=7)

    assert first.payload.after == {
        "index": 0,
        "int": 1335411683,
        "float": 0.35116717871056435,
        "string": "high-bear-0c52",
        "bool": False,
        "time": datetime(2020, 1, 1, tzinfo=UTC),
        "duration": timedelta(seconds=1240, milliseconds=713),
    }
    assert last.payload.after == {
        "index": 299,
        "int": 1712426256,
        "float": 0.7459684666074985,
        "string": "early-deer-e8be",
        "bool": False,
        "time": datetime(2020, 1, 1, 0, 0, 0, 299000, tzinfo=UTC),
        "duration": timedelta(seconds=2623, milliseconds=633),
    }


@given(
    st.integers(0, 600), st.integers(1, 600), st.integers(1, 300), st.integers(), st.sampled_from(["structured", "raw"])
)
def test_going_on_after_any_position_makes_the_records_of_an_uninterrupted_run(
    count: int, index: int, n: int, seed: int, format: str
) -> None:
    operations = ["create", "update", "delete", "snapshot"]
    options: dict[str, Any] = dict(seed=seed, format=format, operations=operations, collections=["a", "b", "c"])
    whole = run(n=1000, count=count, **options)
    assert [record.position for record in whole] == [b"generator:1:%d" % number for number in range(count)]

    assert run(n=n, count=count, **options) == whole
    if index < count:
        assert run(whole[index].position, n=n, count=count, **options) == whole[index + 1 :]


async def test_other_seeds_and_other_numbers_give_other_records() -> None:
    seen = [
        record.payload["value"]
        for seed in range(3)
        for record in await generate(fields={"value": "int"}, seed=seed, count=1000)
    ]

    assert len(set(seen)) > 2990
    assert min(seen) >= 0
    assert max(seen) < 2**31


async def test_the_default_fields_are_good_for_a_demonstration() -> None:
    [record] = await generate(count=1)

    assert isinstance(record.payload.after, dict)
    assert {name: type(value) for name, value in record.payload.after.items()} == {
        "id": int,
        "name": str,
        "amount": float,
        "active": bool,
        "at": datetime,
    }
    assert record.key == b"0"


async def test_raw_payloads_are_the_structured_ones_as_json() -> None:
    fields = {"id": "index", "at": "time", "for": "duration"}
    [structured] = await generate(count=1, fields=fields)
    [raw] = await generate(count=1, fields=fields, format="raw")

    assert isinstance(raw.payload.after, bytes)
    assert json.loads(raw.payload.after)["at"] == "2020-01-01T00:00:00Z"
    assert json.loads(raw.payload.after)["id"] == structured.payload["id"] == 0


async def test_a_file_can_be_the_payload(tmp_path: Path) -> None:
    (tmp_path / "sample").write_bytes(b"\x00content")

    records = await generate(count=3, format="file", path=tmp_path / "sample")

    assert [record.payload.after for record in records] == [b"\x00content"] * 3


async def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match=f"cannot read {tmp_path / 'sample'}: No such file or directory"):
        await generate(format="file", path=tmp_path / "sample")


async def test_operations_have_the_payloads_that_belong_to_them() -> None:
    records = await generate(count=200, operations=["create", "update", "delete"])

    seen = {
        (record.operation, record.payload.before is not None, record.payload.after is not None) for record in records
    }
    assert seen == {
        (Operation.CREATE, False, True),
        (Operation.UPDATE, True, True),
        (Operation.DELETE, True, False),
    }
    assert all(record.payload.before != record.payload.after for record in records)


async def test_a_read_gives_as_many_records_as_are_asked_for_without_making_them() -> None:
    async with open_source(operations=["create"], fields={"id": "index"}) as source:
        await source.read(10)
        reading = await source.read(700)

    assert reading.payloads == [{"id": number} for number in range(10, 710)]
    assert reading.kind is dict
    assert reading.columns == Columns(keys=[b"%d" % number for number in range(10, 710)])


async def test_collections_take_turns() -> None:
    records = await generate(count=3, collections=["users", "orders"])

    assert [record.metadata for record in records] == [
        {"opencdc.collection": "users"},
        {"opencdc.collection": "orders"},
        {"opencdc.collection": "users"},
    ]
    assert (await generate(count=1))[0].metadata == {}


async def test_times_begin_at_the_start_and_advance_with_the_rate(autojump_clock: MockClock) -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    slow = await generate(count=3, fields={"at": "time"}, rate=0.5, start=start)
    fast = await generate(count=3, fields={"at": "time"}, start=start)

    assert [record.payload["at"] - start for record in slow] == [timedelta(seconds=2 * number) for number in range(3)]
    assert [record.payload["at"] - start for record in fast] == [timedelta(milliseconds=number) for number in range(3)]


async def test_records_come_at_the_rate(autojump_clock: MockClock) -> None:
    async with open_source(rate=4, count=5) as source:
        times = [moment for moment, count in await read_with_times(source) for _ in range(count)]

    assert times == [0, 0.25, 0.5, 0.75, 1.0]


async def test_at_a_high_rate_several_records_come_together(autojump_clock: MockClock) -> None:
    async with open_source(rate=50_000, count=50_000) as source:
        sizes = [count for _, count in await read_with_times(source)]

    assert sum(sizes) == 50_000
    assert len(sizes) < 1500
    assert trio.current_time() == pytest.approx(1, abs=0.01)


async def test_of_the_time_lost_to_back_pressure_a_second_is_made_up_for(autojump_clock: MockClock) -> None:
    async with open_source(rate=10) as source:
        await source.read(100)
        await trio.sleep(60)
        late = len(await source.read(100))
        before = trio.current_time()
        await source.read(100)

    assert late == 11
    assert trio.current_time() - before == pytest.approx(0.1)


async def test_bursts_and_pauses_take_turns(autojump_clock: MockClock) -> None:
    async with open_source(rate=2, count=10, burst={"generate_seconds": 2, "sleep_seconds": 10}) as source:
        times = [moment for moment, count in await read_with_times(source) for _ in range(count)]

    assert times == [0, 0.5, 1, 1.5, 12, 12.5, 13, 13.5, 24, 24.5]


async def test_a_burst_without_a_rate_gives_as_much_as_is_taken(autojump_clock: MockClock) -> None:
    async with open_source(burst={"generate_seconds": 1, "sleep_seconds": 5}) as source:
        for _ in range(10):
            assert len(await source.read(256)) == 256
        assert trio.current_time() == 0
        await trio.sleep(1)
        await source.read(256)
        assert trio.current_time() == 6


async def test_a_read_that_is_cancelled_loses_nothing(autojump_clock: MockClock) -> None:
    async with open_source(rate=1) as source:
        [first] = await source.read(1)
        with trio.move_on_after(0.5):
            await source.read(1)
        [second] = await source.read(1)

    assert [first.key, second.key] == [b"0", b"1"]
    assert trio.current_time() == 1


def test_problems_in_options_are_named(tmp_path: Path) -> None:
    problems = generator.Source(rate=-1, fields={"a": "text"}, operations=[], burst={"sleep": 1}).problems
    together = generator.Source(format="file").problems + generator.Source(path=tmp_path).problems

    assert {problem.path for problem in problems} == {
        "rate",
        "fields.a",
        "operations",
        "burst.sleep_seconds",
        "burst.sleep",
    }
    assert [problem.message for problem in together] == ['Value error, format="file" and path go together'] * 2


async def test_a_position_of_another_connector_is_an_error() -> None:
    with pytest.raises(FatalError, match="b'file:1:2:3' is not a position of the generator source"):
        await generate(b"file:1:2:3")


async def test_each_collection_has_a_shape_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG")
    shapes = {
        "users": {"fields": {"id": "index", "name": "string"}},
        "events": {"format": "raw", "fields": {"id": "index"}, "operations": ["delete"]},
        "files": {"format": "file", "path": tmp_path / "picture"},
    }
    options: dict[str, Any] = dict(fields={"n": "index"}, collections=["", *shapes], shapes=shapes, count=600)
    made = await generate(**options)
    later = await generate(made[299].position, **options)

    assert [record.metadata.get("opencdc.collection") for record in made[:5]] == [
        None,
        "users",
        "events",
        "files",
        None,
    ]
    assert made[0].payload.after == {"n": 0}
    assert set(made[1].payload.after or ()) == {"id", "name"}
    assert (made[2].operation, made[2].payload.before, made[2].payload.after) == (Operation.DELETE, b'{"id":2}', None)
    assert made[3].payload.after == b"\x89PNG"
    assert made[300:] == later


def test_a_shape_is_of_a_collection_and_is_checked_like_the_rest() -> None:
    [unknown] = generator.Source(collections=["a"], shapes={"b": {}}).problems
    [wrong] = generator.Source(collections=["a"], shapes={"a": {"format": "file"}}).problems

    assert unknown.message.startswith("Value error, shapes has 'b', which collections does not have")
    assert (wrong.path, wrong.message[:52]) == ("shapes.a", 'Value error, format="file" and path go together')


@pytest.mark.parametrize("size", [1, 1000, 10_000_000])
async def test_the_parts_of_a_generator_are_the_whole(size: int) -> None:
    splitting = generator.Source(count=300, seed=5)
    await splitting.open(b"generator:1:9")
    found: list[Record] = []
    with suppress(EndOfSource):
        while True:
            part = generator.Source(count=300, seed=5)
            await part.open_part(await splitting.split(size))
            found += await read_all(part, 7)

    assert found == await generate(b"generator:1:9", count=300, seed=5)


@pytest.mark.parametrize(("options", "can"), [({"count": 3}, True), ({}, False), ({"count": 3, "rate": 1}, False)])
def test_a_generator_without_an_end_or_with_a_pace_is_not_split(options: dict[str, Any], can: bool) -> None:
    assert generator.Source(**options).splits() is can
