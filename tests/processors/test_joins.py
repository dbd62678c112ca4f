"""Joins against naive models through kills: pairs of two streams, and a table that another source feeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conduit_processors import join
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processor import KilledProcessor
from naive_windows import Event, NaiveTime

from conduit_py.errors import FatalError, RecordRefused
from conduit_py.record import Operation, Record
from conduit_py.testing import strategies

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_of(event: Event) -> Record:
    if event.source == "clock":
        now = EPOCH + timedelta(seconds=event.time)
        return Record.of({"now": now, "first": event.first, "end": event.end})
    return Record.of({"t": event.time, "k": event.key, "v": event.value})


def pair_of(record: Record) -> Any:
    after = record.payload.after
    assert isinstance(after, dict)
    return ("late", after["v"]) if "window.late" in record.metadata else (after["left"]["v"], after["right"]["v"])


@dataclass
class NaiveJoin:
    """Keeps every record for ever, and looks at all of them."""

    time: NaiveTime
    before: int
    after: int
    seen: list[Event] = field(default_factory=list)

    def process(self, event: Event) -> list[Any]:
        if event.source == "clock":
            self.time.tick(event)
            return []
        if self.time.watermark is not None and event.time < self.time.watermark:
            return [("late", event.value)]
        self.time.note(event)
        pairs = [(event, each) if event.source == "l" else (each, event) for each in self.seen]
        self.seen.append(event)
        return [
            (left.value, right.value)
            for left, right in pairs
            if (left.source, right.source, left.key) == ("l", "r", right.key)
            and -self.before <= right.time - left.time <= self.after
        ]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events, time, now = [], 20, 100
    for number in range(draw(st.integers(0, 30))):
        if draw(st.integers(0, 5)) == 0:
            now += draw(st.integers(-1, 6))
            events.append(Event("clock", now, first=draw(st.integers(0, 3)) == 0))
            continue
        time += draw(st.integers(0, 3))
        late = draw(st.sampled_from([0, 0, 1, 2, 3, 6, 12]))
        events.append(Event(draw(st.sampled_from("lr")), time - late, draw(st.sampled_from("aab")), number))
    return events


@settings(max_examples=80)
@given(
    events=histories(),
    slack=st.integers(0, 6),
    idle=st.none() | st.integers(1, 10),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
    commits=st.lists(st.integers(1, 30), max_size=6),
    kills=st.lists(st.integers(0, 30), max_size=4),
    cache_bytes=st.sampled_from([math.inf, 1500, 1]),
)
def test_an_interval_join_gives_all_pairs_once_through_kills(
    events: list[Event],
    slack: int,
    idle: int | None,
    before: int,
    after: int,
    commits: list[int],
    kills: list[int],
    cache_bytes: float,
) -> None:
    model = NaiveJoin(NaiveTime(("l", "r"), slack, idle), before, after)
    processor = join.Interval(
        left="l",
        key="k",
        time="t",
        before_seconds=before,
        after_seconds=after,
        out_of_order_seconds=slack,
        late="pass",
        clock="clock",
        idle_seconds=idle,
    )
    killed = KilledProcessor(processor, ["l", "r", "clock"], record_of, pair_of, cache_bytes)

    shown = killed.run(events, commits, kills)

    assert shown == [pair for event in events for pair in model.process(event)]
    # What can match nothing any more is not kept.
    assert isinstance(killed.running, join.Interval)
    watermark = killed.running.state.watermark
    if watermark is not None:
        reach = {"l": after, "r": before}
        kept = [e for e in model.seen if e.time + reach[e.source] >= watermark]
        assert killed.running.timers.count == len(kept)


def test_sides_and_limits_of_an_interval_join() -> None:
    with pytest.raises(FatalError, match="left='x' is no source of this processor"):
        KilledProcessor(join.Interval(left="x", key="k", time="t"), ["l", "r"], record_of, pair_of)
    [problem] = join.Interval(left="c", key="k", time="t", clock="c").problems
    assert "has the clock as its left side" in problem.message
    killed = KilledProcessor(join.Interval(left="l", key="k", time="t", records_max=1), ["l", "r"], record_of, pair_of)
    killed.process(0, Event("l", 1))
    with pytest.raises(RecordRefused, match="1 records are kept, and records_max=1"):
        killed.process(1, Event("r", 1))


def row_of(event: Event) -> Record:
    record = Record.of({"id": event.key, "v": event.value} if event.value >= 0 else None, key={"id": event.key})
    record.operation = Operation.CREATE if event.value >= 0 else Operation.DELETE
    return record


def joined(**options: Any) -> KilledProcessor[Any]:
    made = join.Table(table="users", table_key=".Key.id", key="id", into="user", **options)
    return KilledProcessor(made, ["users", "clicks"], row_of, lambda record: record.payload.after)


def naive_table(events: Sequence[Event]) -> list[Any]:
    """Of each click, what the last row of its key before it says."""
    shown = []
    for number, click in enumerate(events):
        if click.source != "clicks":
            continue
        rows = [each for each in events[:number] if (each.source, each.key) == ("users", click.key)]
        row = {"user": {"id": click.key, "v": rows[-1].value}} if rows and rows[-1].value >= 0 else {}
        shown.append({"id": click.key, "v": click.value, **row})
    return shown


CHANGES = st.builds(Event, st.just("users"), st.just(0), st.sampled_from("aab"), st.integers(-1, 3))
CLICKS = st.builds(Event, st.just("clicks"), st.just(0), st.sampled_from("abc"), st.integers(0, 9))


@settings(max_examples=80)
@given(
    events=st.lists(CHANGES | CLICKS, max_size=30),
    commits=st.lists(st.integers(1, 30), max_size=6),
    kills=st.lists(st.integers(0, 30), max_size=4),
)
def test_a_table_join_gives_what_the_naive_model_gives_through_kills(
    events: list[Event], commits: list[int], kills: list[int]
) -> None:
    assert joined(missing="keep").run(events, commits, kills) == naive_table(events)


@given(value=strategies.python_values(), kills=st.sampled_from([[], [1]]))
def test_rows_and_records_of_joins_keep_every_type(value: Any, kills: list[int]) -> None:
    table = join.Table(table="l", table_key="k", key="k", into="row")
    pairs = join.Interval(left="l", key="k", time="t")
    events = [Event("l", 1), Event("r", 1)]

    def made(event: Event) -> Record:
        return Record.of({"t": 1, "k": "a", "v": value if event.source == "l" else None})

    [row] = KilledProcessor(table, ["l", "r"], made, lambda record: record.payload["row"]).run(events, [1], kills)
    [pair] = KilledProcessor(pairs, ["l", "r"], made, lambda record: record.payload["left"]).run(events, [1], kills)

    # By their texts: 1 and True are equal, and so are times of two zones.
    assert repr([row["v"], pair["v"]]) == repr([value, value])


@pytest.mark.parametrize("kills", [[], [2], [1, 4]])
def test_a_record_gets_the_row_that_was_there_when_it_came(kills: list[int]) -> None:
    events = [
        Event("users", 0, "a", 1),
        Event("clicks", 0, "a", 10),
        Event("users", 0, "a", 2),
        Event("clicks", 0, "a", 11),
        Event("users", 0, "a", -1),
        Event("clicks", 0, "a", 12),
    ]

    shown = joined(missing="keep").run(events, [2, 4], kills)

    assert shown == [
        {"id": "a", "v": 10, "user": {"id": "a", "v": 1}},
        {"id": "a", "v": 11, "user": {"id": "a", "v": 2}},
        {"id": "a", "v": 12},
    ]


def test_a_record_without_a_row_is_kept_dropped_or_refused() -> None:
    assert joined(missing="drop").process(0, Event("clicks", 0, "a", 1)) == []
    with pytest.raises(RecordRefused, match="the table users has no row for 'a'"):
        joined().process(0, Event("clicks", 0, "a", 1))


def test_the_rows_of_a_table_are_limited() -> None:
    table = joined(rows_max=1)
    table.process(0, Event("users", 0, "a", 1))
    table.process(1, Event("users", 0, "a", 2))

    with pytest.raises(RecordRefused, match="the table has 1 rows, and rows_max=1"):
        table.process(2, Event("users", 0, "b", 1))


def test_a_table_that_is_no_source() -> None:
    make: Callable[[], Any] = lambda: KilledProcessor(  # noqa: E731
        join.Table(table="user", key="id", into="u"), ["users"], row_of, pair_of
    )
    with pytest.raises(FatalError, match="table='user' is no source of this processor"):
        make()
