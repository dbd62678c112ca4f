"""Joins and timers in a pipeline, killed at every durable operation: each pair, each record and each timer once."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from conduit_connectors import clock
from conduit_processors import join
from crash_enumeration import Enumeration
from exactly_once_scenario import ExactlyOnceScenario, Numbers

from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Source
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk import State
from conduit_py.sdk.processor import processor
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeTransactionalDestination

ALL = os.environ.get("CONDUIT_ENUMERATE") == "all"
EVERY = 1 if ALL else 499
COUNT = 4


@processor
def placed(record: Record) -> Record:
    """Gives numbers a time and a key: 100 and 200 are of the same time, even ones have one key."""
    if "n" in record.payload:
        record.payload["t"] = record.payload["n"] % 100
        record.payload["k"] = record.payload["n"] % 2
    return record


@processor(state=True)
def reminded(record: Record, state: State) -> list[Record]:
    """Keeps every number for two seconds by the clock, or until all sources have ended."""
    if state.source != "clock":
        state.put(f"waits{record.payload['n']}", None if (tick := state.get("tick")) is None else tick + 2)
        return []
    state.put("tick", record.payload["now"].timestamp())
    due = [
        name
        for name, until in state.scan("waits")
        if record.payload["end"] or (until is not None and until <= state.get("tick"))
    ]
    for name in due:
        state.delete(name)
    return [Record.of({"n": int(name.removeprefix("waits"))}) for name in due]


@processor
def numbered(record: Record) -> Record:
    """One number for a pair or a joined record; they must not look like those of the sources."""
    after = record.payload.after
    assert isinstance(after, dict)
    if "left" in after:
        return Record.of({"n": -(after["left"]["n"] * 1000 + after["right"]["n"])})
    row = after.get("row", {"n": 0})
    return Record.of({"n": -(row["n"] * 1000 + after["n"])})


def pairs_are_wrong(shown: list[int]) -> bool:
    near = [(left, right) for left in range(4) for right in range(4) if -1 <= right - left <= 2]
    expected = [-((100 + left) * 1000 + 200 + right) for left, right in near if left % 2 == right % 2]
    return sorted(shown) != sorted(expected)


def rows_are_wrong(shown: list[int]) -> bool:
    """Each record once, in order, with a row of its key that is no older than that of the record before it."""
    rows: dict[int, int] = {}
    for number in shown:
        row, n = divmod(-number, 1000)
        if row < rows.get(n % 2, 0) or (row and row % 2 != n % 2):
            return True
        rows[n % 2] = row
    return [-number % 1000 for number in shown] != [200, 201, 202, 203]


def timers_are_wrong(shown: list[int]) -> bool:
    return sorted(-number for number in shown) != [100, 101, 102, 103, 200, 201, 202, 203]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[list[int]], bool]]] = {
    "interval": (
        lambda: join.Interval(
            left="left", key="k", time="t", before_seconds=1, after_seconds=2, out_of_order_seconds=100, clock="clock"
        ),
        pairs_are_wrong,
    ),
    "table": (lambda: join.Table(table="left", table_key="k", key="k", into="row", missing="keep"), rows_are_wrong),
    "timer": (lambda: reminded, timers_are_wrong),
}


class JoinScenario(ExactlyOnceScenario):
    """Two sources of four numbers, a clock where there is a use for it, and what the processor makes of them."""

    def __init__(self, kind: str, *, with_home: bool) -> None:
        super().__init__(with_home=with_home, count=COUNT)
        self._make, self._is_wrong = KINDS[kind]
        self._clock = kind != "table"

    def pipeline(self) -> Pipeline:
        self.runs += 1
        run, acks = self.runs, self.acks.setdefault(self.runs, {name: [] for name in self.SOURCES})

        def acked(name: str, numbers: list[int]) -> None:
            acks[name] += numbers
            self._check_acks(run, name)

        kinds: dict[str, Any] = {"home": FakeTransactionalDestination, "staged": FakeStagedDestination}
        ticks = [Source("clock", clock.Source(every_seconds=1))] if self._clock else []
        return Pipeline(
            "scenario",
            sources=[
                *(
                    Source(name, Numbers(first=numbers[0], count=COUNT, acked=acked, name=name))
                    for name, numbers in self.numbers.items()
                ),
                *ticks,
            ],
            processors=[placed, self._make(), numbered],
            destinations=[Destination(name, kinds[name](storage=self.storages[name])) for name in self._names],
            dead_letters=DeadLetters("drop"),
            delivery="exactly_once",
            transaction=TransactionLimits(max_records=2),
        )

    @property
    def _names(self) -> list[str]:
        return ["home", "staged"] if self.with_home else ["staged"]

    def look(self) -> None:
        """What must hold at every moment: nothing is shown twice."""
        for name in self._names:
            visible = self.storages[name].visible
            if len(visible) != len(set(visible)):
                self.violations.append(f"{name} shows {visible}")

    async def check(self) -> list[str]:
        for name in self._names:
            if self._is_wrong(self.storages[name].visible):
                self.violations.append(f"{name} shows {self.storages[name].visible}")
        return self.violations


@pytest.mark.parametrize("with_home", [True, False] if ALL else [True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_joins_and_timers_are_exact_when_killed_once(kind: str, with_home: bool) -> None:
    report = Enumeration(lambda: JoinScenario(kind, with_home=with_home)).kill_once()

    assert report.broken == {}
    assert report.trials >= 20


@pytest.mark.parametrize("kind", list(KINDS))
def test_joins_and_timers_are_exact_when_killed_twice_and_frozen(kind: str) -> None:
    enumeration = Enumeration(lambda: JoinScenario(kind, with_home=True), every=EVERY)

    assert enumeration.kill_twice().broken == {}
    assert enumeration.freeze_and_resume().broken == {}
