"""Windows and a clock in a pipeline, killed at every durable operation: late data counts once, results show once."""

import os
from typing import Any

import pytest
from conduit_connectors import clock
from conduit_processors import window
from crash_enumeration import Enumeration
from exactly_once_scenario import ExactlyOnceScenario, Numbers

from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Processor, Source
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk.processor import processor
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeTransactionalDestination
from conduit_py.testing.simulation import simulate

ALL = os.environ.get("CONDUIT_ENUMERATE") == "all"
SHORT = [("session", True), ("tumbling", False)]
EVERY = 1 if ALL else 499
TIMES = [1, 3, 2, 7, 11, 6, 4, 23, 24, 21]
"""Event times of the records: out of order, some within the lateness and one too late."""


class WindowScenario(ExactlyOnceScenario):
    """One source of ten times, a window, a clock, and what the window gives as numbers: kind, start and count."""

    SOURCES: tuple[str, ...] = ("left",)

    def __init__(self, kind: str, *, with_home: bool, cache_bytes: int = 1_000_000) -> None:
        super().__init__(with_home=with_home, count=len(TIMES))
        self._kind = kind
        self._cache_bytes = cache_bytes

    def pipeline(self) -> Pipeline:
        self.runs += 1
        self.acks[self.runs] = {"left": []}
        run = self.runs

        def acked(name: str, numbers: list[int]) -> None:
            self.acks[run][name] += numbers
            self._check_acks(run, name)

        @processor
        def timed(record: Record) -> Record:
            if "n" in record.payload:
                record.payload["t"] = TIMES[record.payload["n"] - 100]
            return record

        @processor
        def numbered(record: Record) -> Record:
            record.payload["n"] = number_of(record)
            return record

        kinds: dict[str, Any] = {"home": FakeTransactionalDestination, "staged": FakeStagedDestination}
        names = ["home", "staged"] if self.with_home else ["staged"]
        return Pipeline(
            "scenario",
            sources=[
                Source("left", Numbers(first=100, count=self.count, acked=acked, name="left")),
                Source("clock", clock.Source(every_seconds=1000)),
            ],
            processors=[
                timed,
                Processor("window", make_window(self._kind), state_cache_bytes=self._cache_bytes),
                numbered,
            ],
            destinations=[Destination(name, kinds[name](storage=self.storages[name])) for name in names],
            dead_letters=DeadLetters("drop"),
            delivery="exactly_once",
            transaction=TransactionLimits(max_records=3),
        )

    def look(self) -> None:
        """What must hold at every moment: every result is shown at most once."""
        for name in ("home", "staged"):
            visible = self.storages[name].visible
            if len(visible) != len(set(visible)):
                self.violations.append(f"{name} shows {visible}")

    async def check(self) -> list[str]:
        for name in ["home", "staged"] if self.with_home else ["staged"]:
            if self.storages[name].visible != EXPECTED[self._kind]:
                self.violations.append(f"{name} shows {self.storages[name].visible}, not {EXPECTED[self._kind]}")
        return self.violations


def make_window(kind: str) -> Any:
    common: dict[str, Any] = {"time": "t", "clock": "clock", "allowed_lateness_seconds": 2, "late": "pass"}
    if kind == "session":
        return window.Session(gap_seconds=3, **common)
    if kind == "sliding":
        return window.Sliding(size_seconds=10, slide_seconds=5, **common)
    return window.Tumbling(size_seconds=5, **common)


def number_of(record: Record) -> int:
    """A number for each result that differs; they must not look like those of the source."""
    if window.LATE in record.metadata:
        return -1000 - int(record.payload["t"])
    kind = {"create": 1, "update": 2, "delete": 3}[record.operation.value]
    if record.payload.after is None:
        assert isinstance(record.key, dict)
        record.payload.after = {}
        return -(kind * 10_000 + int(record.key["window_start"].timestamp()) * 100)
    start, count = int(record.payload["window_start"].timestamp()), int(record.payload["count"])
    return -(kind * 10_000 + start * 100 + count)


def undisturbed(kind: str) -> list[int]:
    scenario = WindowScenario(kind, with_home=False)
    simulate(run_to_end, scenario.pipeline(), scenario.store)
    return scenario.storages["staged"].visible


EXPECTED = {
    # [0, 5) at 7; [5, 10) at 11, and again with 6; 4 is late; [10, 15) at 23; [20, 25) at the end.
    "tumbling": [-10003, -10501, -20502, -1004, -11001, -12003],
    # [-5, 5) at 7; [0, 10) at 11, and again with 6 and with 4; two at 23; two at the end.
    "sliding": [-9503, -10004, -20005, -20006, -10503, -11001, -11503, -12003],
    # From 1 at 7; from 7 at 11, which 6 makes one from 6, and 4 one from 4; from 11 at 23; from 21 at the end.
    "session": [-10103, -10701, -30700, -10602, -30600, -10403, -11101, -12103],
}


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_what_the_windows_give_undisturbed(kind: str) -> None:
    assert undisturbed(kind) == EXPECTED[kind]


@pytest.mark.parametrize(
    ("kind", "with_home"),
    [(kind, home) for kind in EXPECTED for home in (True, False) if ALL or (kind, home) in SHORT],
)
def test_windows_are_exact_when_killed_once(kind: str, with_home: bool) -> None:
    report = Enumeration(lambda: WindowScenario(kind, with_home=with_home)).kill_once()

    assert report.broken == {}
    assert report.trials >= 40


@pytest.mark.parametrize("kind", list(EXPECTED) if ALL else ["sliding"])
def test_windows_whose_state_is_in_the_store_are_exact_when_killed_once(kind: str) -> None:
    report = Enumeration(lambda: WindowScenario(kind, with_home=True, cache_bytes=1)).kill_once()

    assert report.broken == {}
    assert report.trials >= 40


@pytest.mark.parametrize("kind", list(EXPECTED) if ALL else ["session"])
def test_windows_are_exact_when_killed_twice_and_frozen(kind: str) -> None:
    enumeration = Enumeration(lambda: WindowScenario(kind, with_home=True), every=EVERY)

    assert enumeration.kill_twice().broken == {}
    assert enumeration.freeze_and_resume().broken == {}
