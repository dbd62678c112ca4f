"""Joins: pairs of two streams against all pairs, through kills; and a table that another source feeds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from conduit_processors import join
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processor import KilledProcessor
from naive_windows import Event

from conduit_py.errors import FatalError, RecordRefused
from conduit_py.record import Operation, Record


def record_of(event: Event) -> Record:
    return Record.of({"t": event.time, "k": event.key, "v": event.value})


def pair_of(record: Record) -> Any:
    after = record.payload.after
    assert isinstance(after, dict)
    return ("late", after["v"]) if "window.late" in record.metadata else (after["left"]["v"], after["right"]["v"])


@dataclass
class NaiveJoin:
    """Keeps every record for ever, and looks at all of them."""

    slack: int
    before: int
    after: int
    seen: list[Event] = field(default_factory=list)

    def process(self, event: Event) -> list[Any]:
        highest = {source: max((e.time for e in self.seen if e.source == source), default=None) for source in "lr"}
        if None not in highest.values() and event.time < min(t for t in highest.values() if t is not None) - self.slack:
            return [("late", event.value)]
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
    events, time = [], 20
    for number in range(draw(st.integers(0, 30))):
        time += draw(st.integers(0, 3))
        late = draw(st.sampled_from([0, 0, 1, 2, 3, 6, 12]))
        events.append(Event(draw(st.sampled_from("lr")), time - late, draw(st.sampled_from("aab")), number))
    return events


@settings(max_examples=80)
@given(
    events=histories(),
    slack=st.integers(0, 6),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
    commits=st.lists(st.integers(1, 30), max_size=6),
    kills=st.lists(st.integers(0, 30), max_size=4),
    cache_bytes=st.sampled_from([math.inf, 1500, 1]),
)
def test_an_interval_join_gives_all_pairs_once_through_kills(
    events: list[Event],
    slack: int,
    before: int,
    after: int,
    commits: list[int],
    kills: list[int],
    cache_bytes: float,
) -> None:
    model = NaiveJoin(slack, before, after)
    processor = join.Interval(
        left="l", key="k", time="t", before_seconds=before, after_seconds=after, out_of_order_seconds=slack, late="pass"
    )
    killed = KilledProcessor(processor, ["l", "r"], record_of, pair_of, cache_bytes)

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
