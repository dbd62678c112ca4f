"""A state that is larger than its cache: what is read is what was put, whatever is in memory, and counts are right."""

import asyncio
import enum
import heapq
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
import trio
from builders import batch_of
from conduit_processors.window.timers import Timers
from exactly_once_scenario import Numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processor import DictValues, nothing_seen

from conduit_py.backoff import Recovery
from conduit_py.errors import FatalError, RecordRefused, StateFailed
from conduit_py.graph.compile import compile_pipeline
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Processor
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk import State, processor
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.store.tables import Tables
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage

T = TypeVar("T")
KEYS = ["a", "ab", "b", "é", ""]


class WaitingValues(DictValues):
    """As a store in another thread: what is changed without being read is counted when the batch is processed."""

    waits = True


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 10**9)),
        st.tuples(st.sampled_from(["delete", "get", "fetch"]), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.sampled_from(["keep", "undo", "batch", "seal", "scan", "crash"]), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps=steps, kind=st.sampled_from([DictValues, WaitingValues]), cache_bytes=st.sampled_from([1, 250, 500]))
def test_a_cached_state_is_the_same_mapping_as_one_in_memory(
    steps: list[tuple[str, str, int]], kind: type[DictValues], cache_bytes: int
) -> None:
    stored: dict[str, bytes] = {}
    sealed: dict[str, bytes | None] = {}
    committed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    current: dict[str, Any] = {}

    def commit() -> None:
        for key, value in sealed.items():
            stored.pop(key, None) if value is None else stored.update({key: value})

    def start() -> State:
        state = State()
        state.cache_bytes = cache_bytes
        state.load_evicted(len(stored), size_of(stored), nothing_seen, kind(stored))
        state.enter(batch_of(Record.of({})))
        return state

    state = start()
    for step, key, value in steps:
        if step == "put":
            state.put(key, value)
            current[key] = value
        elif step == "delete":
            state.delete(key)
            current.pop(key, None)
        elif step == "get":
            assert state.get(key) == current.get(key)
        elif step == "fetch":
            state.fetch(KEYS)
        elif step == "scan":
            assert list(state.scan("a")) == sorted(each for each in current.items() if each[0].startswith("a"))
            assert list(state.scan("", "ab")) == sorted(each for each in current.items() if each[0] >= "ab")
        elif step == "crash":
            state, kept, current = start(), dict(committed), dict(committed)
            sealed = {}
        elif step == "undo":
            state.undo()
            current = dict(kept)
        else:
            state.keep()
            kept = dict(current)
        if step in ("batch", "seal"):
            state.count_replaced()
        if step == "seal":
            # The store commits at any time from here on, until the next transaction is sealed.
            sealed, committed = state.drain().puts, dict(kept)
            commit()
        if step in ("batch", "seal"):
            state.enter(batch_of(Record.of({})))
            state.read_ahead(())
            assert (len(state), state.size) == (len(kept), size_of({k: pack(v) for k, v in kept.items()}))
    assert {key: state.get(key) for key in KEYS} == {key: current.get(key) for key in KEYS}


def pack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def size_of(values: dict[str, bytes]) -> int:
    return sum(len(key) + len(value) for key, value in values.items())


def test_what_is_not_committed_is_never_evicted() -> None:
    stored: dict[str, bytes] = {}
    state = State()
    state.cache_bytes = 1
    state.load({}, nothing_seen, DictValues(stored))
    enter = batch_of(Record.of({}))

    state.put("a", 1)
    state.keep()
    state.enter(enter)
    assert state.cached == 1
    first = state.drain().puts
    # Sealed, and the commit is under way: the store does not have it.
    state.enter(enter)
    assert (state.cached, state.get("a")) == (1, 1)
    stored.update({key: value for key, value in first.items() if value is not None})
    state.drain()
    state.enter(enter)
    assert (state.cached, len(state), state.get("a")) == (0, 1, 1)


@given(
    times=st.lists(
        st.tuples(st.sampled_from(["add", "add", "take", "seal", "crash"]), st.integers(-9, 30)), max_size=60
    )
)
def test_timers_in_the_state_are_taken_in_the_order_of_their_times(times: list[tuple[str, int]]) -> None:
    stored: dict[str, bytes] = {}
    committed: list[tuple[int, str]] = []
    model: list[tuple[int, str]] = []

    def start() -> tuple[State, Timers[str]]:
        state = State()
        state.cache_bytes = 1
        state.load_evicted(len(stored), size_of(stored), nothing_seen, DictValues(stored))
        state.enter(batch_of(Record.of({})))
        timers = Timers[str](state, str, str, str, head_max=2)
        timers.begin()
        return state, timers

    state, timers = start()
    for step, number in times:
        if step == "add" and (number, f"k{number}") not in model:
            timers.add(number, f"k{number}")
            timers.count += 1
            heapq.heappush(model, (number, f"k{number}"))
        elif step == "take":
            due = sorted(each for each in model if each[0] <= number)
            assert list(timers.take(number)) == [what for _, what in due]
            timers.count -= len(due)
            model = [each for each in model if each[0] > number]
        elif step == "crash":
            state, timers = start()
            model = list(committed)
        state.keep()
        assert timers.last(lambda what: int(what[1:])) == max((when for when, _ in model), default=None)
        assert timers.count == len(model)
        if step == "seal":
            for key, value in state.drain().puts.items():
                stored.pop(key, None) if value is None else stored.update({key: value})
            state.enter(batch_of(Record.of({})))
            committed = list(model)
        assert len(timers.head) <= 5


def test_timers_of_a_later_format_are_refused() -> None:
    state = State()
    state.load({"~timers": pack([2, 0])}, nothing_seen)

    with pytest.raises(FatalError, match="have format version 2; this conduit-py can read version 1"):
        Timers[str](state, str, str, str)


class Counting:
    """A pipeline that counts numbers modulo 1000, and what is in memory of its state."""

    def __init__(
        self,
        count: int,
        *,
        cache_bytes: int = 20_000,
        careless: bool = False,
        form: Literal["sync", "async", "asyncio"] = "sync",
        state_keys: Callable[[Record], list[str]] | None = None,
    ) -> None:
        self.storage = FakeStorage()
        self.cached_max = 0
        self.state: State

        def count_key(record: Record, state: State) -> Record:
            key = key_of(record)
            try:
                before = state.get(key, 0)
            except Exception:
                if not careless:
                    raise
                before = 0
            state.put(key, before + 1)
            record.payload["n"] = before + 1
            self.state, self.cached_max = state, max(self.cached_max, state.cached)
            return record

        async def count_key_async(record: Record, state: State) -> Record:
            await trio.lowlevel.checkpoint()
            return count_key(record, state)

        async def count_key_on_asyncio(record: Record, state: State) -> Record:
            await asyncio.sleep(0)
            return count_key(record, state)

        functions: dict[str, Any] = {"sync": count_key, "async": count_key_async, "asyncio": count_key_on_asyncio}
        count_keys = processor(state=True, state_keys=state_keys, asyncio=form == "asyncio")(functions[form])
        self.pipeline = Pipeline(
            "counts",
            sources={"in": Numbers(first=0, count=count, acked=lambda name, numbers: None, name="in")},
            processors=[Processor("count", count_keys, state_cache_bytes=cache_bytes)],
            destinations=[Destination("out", FakeStagedDestination(storage=self.storage))],
            dead_letters=DeadLetters("drop"),
            delivery="exactly_once",
            transaction=TransactionLimits(max_records=50),
            recovery=Recovery(retries=0),
        )


def key_of(record: Record) -> str:
    return str(record.payload["n"] % 1000)


@pytest.fixture(params=["memory", "sqlite"])
async def state_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path) as store:
        yield store


@pytest.mark.parametrize("form", ["sync", "async", "asyncio"])
async def test_ten_times_as_many_keys_as_the_cache_holds_are_counted_right(
    state_store: Store, form: Literal["sync", "async", "asyncio"]
) -> None:
    # A sync one need not name its keys.
    state_keys = None if form == "sync" else lambda record: [key_of(record)]
    first, again = (Counting(count, form=form, state_keys=state_keys) for count in (2500, 4000))

    await run_to_end(first.pipeline, state_store)
    await run_to_end(again.pipeline, state_store)

    assert first.storage.visible == [1] * 1000 + [2] * 1000 + [3] * 500
    assert again.storage.visible == [3] * 500 + [4] * 1000
    for each in (first, again):
        assert len(each.state) == 1000
        assert each.state.size == sum(len(str(key)) for key in range(1000)) + 1000
        assert each.state.evicted is not None
        assert each.state.evicted.reads > 1000
        # A tenth of the keys, and what two transactions and a batch of fifty records changed.
        assert 50 <= each.cached_max <= 250


async def test_a_state_that_fits_is_never_read_again(state_store: Store) -> None:
    counting = Counting(2500, cache_bytes=1_000_000)

    await run_to_end(counting.pipeline, state_store)

    assert counting.state.evicted is None
    assert counting.cached_max == len(counting.state) == 1000


async def test_an_async_processor_that_names_no_keys_has_its_whole_state_in_memory(state_store: Store) -> None:
    counting = Counting(2500, form="async")

    await run_to_end(counting.pipeline, state_store)

    assert counting.state.evicted is None
    assert counting.cached_max == len(counting.state) == 1000
    [warned] = [node.id for node in compile_pipeline(counting.pipeline).nodes.values() if node.keeps_all_in_memory]
    assert warned == "count"


@pytest.mark.parametrize("careless", [False, True])
async def test_an_async_processor_that_does_not_name_a_key_ends_its_run(careless: bool, state_store: Store) -> None:
    counting = Counting(4000, form="async", state_keys=lambda record: ["other"], careless=careless)

    outcome = await run_to_end(counting.pipeline, state_store)

    assert outcome.error is not None
    assert "cannot be read by an async processor" in outcome.error.message
    assert "name every key in state_keys" in (outcome.error.suggestion or "")
    # Never a count that begins again.
    assert set(counting.storage.visible) == {1}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: Decimal
    colour: Colour


VALUES = [
    Decimal("1.50"), datetime.fromisoformat("2026-01-02T03:04:05.6"),
    datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    date(2026, 1, 2), timedelta(days=-1, microseconds=5), UUID(int=7), {1, 2}, 2**70, -(2**70), "\ud800",
    {"a": [Decimal("0.1"), None, {"b": date.min}]}, {1: "one", "1": "text"}, [], {}, b"", 1.5, True, "text",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    state = State()
    state.put("k", [value])

    [back] = state.get("k")
    assert back == value
    assert type(back) is type(value)


def test_a_tuple_is_a_list_and_an_object_the_dict_of_its_fields() -> None:
    state = State()
    state.put("tuple", (1, (2, Decimal(3))))
    state.put("plain", (1, (2,)))
    state.put("object", Point(Decimal("1.0"), Colour.RED))

    assert state.get("tuple") == [1, [2, Decimal(3)]]
    assert state.get("plain") == [1, [2]]
    assert state.get("object") == {"x": Decimal("1.0"), "colour": "red"}
    for hostile in (object(), [object()], {"a": print}, math.nan.__class__):
        with pytest.raises(RecordRefused, match="'k' cannot be stored"):
            state.put("k", hostile)


def test_values_of_earlier_versions_come_back_as_they_did() -> None:
    state = State()
    earlier = {
        "decimal": "1.50",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "list": [1, 2],
        "code": msgspec.msgpack.Ext(1, b"x"),
    }
    state.load({key: pack(value) for key, value in earlier.items()}, nothing_seen)

    assert {key: state.get(key) for key in earlier} == earlier


class FailingReads(MemoryStore):
    """A store that must be waited for, and cannot be read after the run has begun."""

    waits = True

    async def look(self, work: Callable[[Tables], T]) -> T:
        if self.writes > 10:
            raise StateFailed("the disk is gone")
        return await super().look(work)


@pytest.mark.parametrize("careless", [False, True])
async def test_a_read_that_fails_ends_the_run_and_refuses_no_record(careless: bool) -> None:
    counting = Counting(4000, careless=careless)

    outcome = await run_to_end(counting.pipeline, FailingReads())

    assert outcome.error is not None
    assert "the disk is gone" in outcome.error.message
    # Right counts up to the last commit, and nothing behind it.
    assert counting.storage.visible == [1] * (int(outcome.positions["in"]) + 1)
