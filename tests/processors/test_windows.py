"""Windows against a naive model: random orders, lateness, ticks, kills and restarts, all as the runtime calls them."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from conduit_processors import window
from conduit_processors.window.aggregate import Aggregate
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processor import KilledProcessor
from naive_windows import Event, Given, NaiveWindows

from conduit_py.errors import FatalError, RecordRefused
from conduit_py.record import Operation, Record
from conduit_py.sdk import Processor, State
from conduit_py.testing import strategies

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALUES = {
    "n": "count",
    "total": "sum(.Payload.After.v)",
    "least": "min(.Payload.After.v)",
    "most": "max(.Payload.After.v)",
    "mean": "mean(.Payload.After.v)",
    "first": "first(.Payload.After.v)",
    "last": "last(.Payload.After.v)",
    "all": "collect(.Payload.After.v)",
}


def record_of(event: Event) -> Record:
    when = EPOCH + timedelta(seconds=event.time)
    if event.source == "clock":
        return Record.of({"now": when, "first": event.first, "end": event.end})
    return Record.of({"t": when, "k": event.key, "v": event.value})


def killed_window(
    processor: Processor[Any], sources: Sequence[str], cache_bytes: float = math.inf, state_type: type[State] = State
) -> KilledProcessor[Given]:
    return KilledProcessor(processor, sources, record_of, given_of, cache_bytes, state_type)


def given_of(record: Record) -> Given:
    if record.metadata.get(window.LATE) == "true":
        after = record.payload.after
        assert isinstance(after, dict)
        return Given("late", after["k"], seconds(after["t"]), seconds(after["t"]), (after["v"],))
    key, after = record.key, record.payload.after
    assert isinstance(key, dict)
    start = seconds(key["window_start"])
    if record.operation is Operation.DELETE:
        assert isinstance(record.payload.before, dict)
        return Given("delete", key["k"], start, seconds(record.payload.before["window_end"]))
    assert isinstance(after, dict)
    values = after["all"]
    expected = {
        "n": len(values), "total": sum(values), "least": min(values), "most": max(values),
        "mean": sum(values) / len(values), "first": values[0], "last": values[-1], "all": values,
    }  # fmt: skip
    assert {name: after[name] for name in VALUES} == expected
    return Given(record.operation.value, key["k"], start, seconds(after["window_end"]), tuple(values))


def seconds(when: datetime) -> int:
    return int((when - EPOCH).total_seconds())


KINDS: list[tuple[Callable[..., Processor[Any]], NaiveWindows]] = [
    (lambda **more: window.Tumbling(size_seconds=5, **more), NaiveWindows((), size=5, slide=5)),
    (lambda **more: window.Sliding(size_seconds=6, slide_seconds=2, **more), NaiveWindows((), size=6, slide=2)),
    (lambda **more: window.Session(gap_seconds=3, **more), NaiveWindows((), gap=3)),
]
SOURCES = ("left", "right")


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Event]]:
    """Sources, and what they give: time goes on by steps, and records come up to nine seconds too late."""
    sources = SOURCES[: draw(st.integers(1, 2))]
    events, time, now = [], 10, 100
    for _ in range(draw(st.integers(0, 30))):
        if draw(st.integers(0, 5)) == 0:
            now += draw(st.integers(-1, 6))
            events.append(Event("clock", now, first=draw(st.integers(0, 3)) == 0))
        else:
            time += draw(st.integers(0, 3))
            late = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 9]))
            source, key = draw(st.sampled_from(sources)), draw(st.sampled_from("aab"))
            events.append(Event(source, time - late, key, draw(st.integers(-5, 5))))
    if draw(st.booleans()):
        events.append(Event("clock", now, end=True))
    return sources, events


@pytest.mark.parametrize("kind", KINDS, ids=["tumbling", "sliding", "session"])
@settings(max_examples=80)
@given(
    history=histories(),
    slack=st.integers(0, 5),
    lateness=st.integers(0, 9),
    idle=st.none() | st.integers(1, 10),
    commits=st.lists(st.integers(1, 30), max_size=6),
    kills=st.lists(st.integers(0, 30), max_size=4),
    cache_bytes=st.sampled_from([math.inf, 1500, 1]),
)
def test_windows_give_what_the_naive_model_gives_through_kills(
    kind: tuple[Callable[..., Processor[Any]], NaiveWindows],
    history: tuple[tuple[str, ...], list[Event]],
    slack: int,
    lateness: int,
    idle: int | None,
    commits: list[int],
    kills: list[int],
    cache_bytes: float,
) -> None:
    sources, events = history
    make, model = kind
    processor = make(
        time=".Payload.After.t",
        key=".Payload.After.k",
        aggregate=VALUES,
        late="pass",
        clock="clock",
        out_of_order_seconds=slack,
        allowed_lateness_seconds=lateness,
        idle_seconds=idle,
    )
    expected = replace(model, sources=sources, slack=slack, lateness=lateness, idle=idle)
    expected = deepcopy(expected)

    shown = killed_window(processor, [*sources, "clock"], cache_bytes).run(events, commits, kills)

    assert shown == [each for event in events for each in expected.process(event)]


class FullState(State):
    """A state that takes no more values of the windows of one key."""

    def put(self, key: str, value: Any) -> None:
        if key.startswith("w") and key.endswith("\xa4full"):
            raise RecordRefused("it cannot be stored")
        super().put(key, value)


def test_a_refused_record_leaves_no_trace_in_the_index() -> None:
    processor = window.Tumbling(time="t", key="k", size_seconds=5, windows_max=2, aggregate={"total": "sum(v)"})
    killed = killed_window(processor, ["left"], state_type=FullState)
    for refused, event in enumerate(
        # More than 64 bits have is no problem.
        [Event("left", 1, "a", 2**64 - 1), Event("left", 1, "full"), Event("left", 1, "a", 1), Event("left", 2, "b")]
    ):
        if refused == 1:
            with pytest.raises(RecordRefused, match="cannot be stored"):
                killed.process(refused, event)
        else:
            killed.process(refused, event)

    with pytest.raises(RecordRefused, match="2 windows are open, and windows_max=2"):
        killed.process(4, Event("left", 3, "c"))

    assert isinstance(killed.running, window.Tumbling)
    assert killed.running.timers.count == 2
    assert len(killed.state) == 3
    assert killed.state.watermark == 2


@pytest.mark.parametrize("cache_bytes", [math.inf, 1], ids=["in memory", "in the store"])
def test_a_session_has_few_timers_however_many_records_it_has(cache_bytes: float) -> None:
    killed = killed_window(window.Session(time="t", gap_seconds=100), ["left"], cache_bytes)
    for number in range(1, 300):
        killed.process(number, Event("left", number, "a"))

    assert isinstance(killed.running, window.Session)
    assert killed.running.timers.count == 1
    assert len(killed.running.timers.head) <= 2
    assert sum(name.startswith("~timer:") for name, _ in killed.state.scan()) <= 2


@pytest.mark.parametrize(
    ("time", "why"),
    [
        (datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001 - a time without a zone is what is refused
        ("yesterday", "no time in ISO 8601"),
        (True, "which is no time"),
        (float("nan"), "which is no time"),
        (1e300, "years 1 and 9999"),
        (datetime(9000, 1, 1, tzinfo=UTC), "ahead of now"),
        ([], "which is no time"),
    ],
)
def test_a_record_without_a_usable_time_is_refused(
    refusal: Callable[[Processor[Any], Record], RecordRefused], time: object, why: str
) -> None:
    error = refusal(window.Session(time="t", gap_seconds=1), Record.of({"t": time}))

    assert why in str(error)


@pytest.mark.parametrize(("unit", "number"), [("s", 12.5), ("ms", 12500), ("us", 12_500_000), ("ns", 12_500_000_000)])
def test_numbers_are_times_in_their_unit(unit: Any, number: float) -> None:
    processor = window.Tumbling(time="t", time_unit=unit, size_seconds=5).fresh()
    processor.open()
    processor.process(Record.of({"t": number}))
    later = number * 4 if unit == "s" else int(number * 4)

    [result] = processor.process(Record.of({"t": later}))  # type: ignore[misc]

    assert result.payload["window_start"] == EPOCH + timedelta(seconds=10)
    assert (result.key, result.payload["count"]) == ({"key": None, "window_start": result.payload["window_start"]}, 1)


def test_a_late_record_is_dropped_or_refused() -> None:
    for late, outcome in (("drop", []), ("refuse", RecordRefused)):
        killed = killed_window(window.Tumbling(time="t", size_seconds=5, late=late), ["left"])  # type: ignore[arg-type]
        killed.process(0, Event("left", 20))
        if outcome == []:
            assert killed.process(1, Event("left", 1)) == []
        else:
            with pytest.raises(RecordRefused, match="is late: it is of 1970-01-01T00:00:01"):
                killed.process(1, Event("left", 1))


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: window.Tumbling(time="t", size_seconds=0), "greater than or equal to 0.001"),
        (lambda: window.Sliding(time="t", size_seconds=1, slide_seconds=2), "records between windows would be in none"),
        (lambda: window.Sliding(time="t", size_seconds=9999, slide_seconds=1), "more than 1000 windows"),
        (lambda: window.Session(time="t", gap_seconds=1, aggregate={"n": "median(x)"}), "must be one of count, sum"),
        (lambda: window.Session(time="t", gap_seconds=1, aggregate={}), "at least one function"),
        (lambda: window.Session(time="t", gap_seconds=1, aggregate={"u": "count"}, key="u"), "'u' twice"),
        (lambda: window.Session(time="t", gap_seconds=1, idle_seconds=1), "no clock to tell that time passes"),
    ],
)
def test_check_reports_wrong_options(made: Callable[[], Processor[Any]], problem: str) -> None:
    [found] = made().problems

    assert problem in found.message


def test_a_clock_that_is_no_source_ends_the_run_with_its_name() -> None:
    with pytest.raises(FatalError, match="clock='tick' is no source of this processor"):
        killed_window(window.Tumbling(time="t", size_seconds=5, clock="tick"), ["left", "clock"])


def test_a_key_that_is_too_long_is_refused(refusal: Callable[[Processor[Any], Record], RecordRefused]) -> None:
    error = refusal(window.Session(time="t", key="k", gap_seconds=1), Record.of({"t": 1, "k": "x" * 2000}))

    assert "a key at most 1024" in str(error)


CENTS = st.decimals(min_value=-(10**20), max_value=10**20, places=2)


@given(values=st.lists(CENTS | st.integers(-(10**15), 10**15), min_size=1, max_size=12), data=st.data())
def test_decimals_are_added_exactly_in_whatever_order(values: list[Decimal | int], data: st.DataObject) -> None:
    aggregates = {name: Aggregate.of(f"{name}(v)") for name in ("sum", "min", "max", "mean")}
    accumulators: dict[str, Any] = dict.fromkeys(aggregates)
    for value in data.draw(st.permutations(values)):
        for name, each in aggregates.items():
            given = each.value(Record.of({"v": value}))
            # Through the form that a state keeps.
            accumulators[name] = msgspec.msgpack.decode(msgspec.msgpack.encode(each.add(accumulators[name], given, 0)))

    found = {name: each.result(accumulators[name]) for name, each in aggregates.items()}
    exact = sum(map(Fraction, values), Fraction(0))
    assert Fraction(found["sum"]) == exact
    assert (found["min"], found["max"]) == (min(values), max(values))
    assert abs(Fraction(found["mean"]) - exact / len(values)) <= abs(exact) * Fraction(1, 10**15)


@given(values=st.lists(strategies.python_values(), min_size=1, max_size=5), kills=st.lists(st.integers(0, 5)))
def test_values_that_are_kept_have_their_type(values: list[Any], kills: list[int]) -> None:
    aggregate = {"first": "first(v)", "last": "last(v)", "all": "collect(v)"}
    processor = window.Tumbling(time="t", size_seconds=1000, aggregate=aggregate, clock="clock")

    def made(event: Event) -> Record:
        return record_of(event) if event.source == "clock" else Record.of({"t": 1, "v": values[event.value]})

    events = [*(Event("left", 1, value=index) for index in range(len(values))), Event("clock", 1, end=True)]
    killed: KilledProcessor[Any] = KilledProcessor(processor, ["left", "clock"], made, lambda each: each.payload.after)
    [shown] = killed.run(events, [1, 3], kills)

    # By their texts: 1 and True are equal, and so are times of two zones.
    assert repr([shown["first"], shown["last"], shown["all"]]) == repr([values[0], values[-1], values])


def test_a_sum_of_a_decimal_and_a_float_is_a_float() -> None:
    total = Aggregate.of("sum(v)")
    one, other = (total.value(Record.of({"v": value})) for value in (Decimal("1.50"), 0.25))

    assert total.result(total.add(total.add(None, one, 0), other, 0)) == 1.75
    assert type(total.result(total.add(None, one, 0))) is Decimal


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("1e400"), Decimal("1e-101"), Decimal("1e101")])
def test_a_decimal_without_a_bound_is_refused(value: Decimal) -> None:
    with pytest.raises(RecordRefused):
        Aggregate.of("sum(v)").value(Record.of({"v": value}))
