"""The acceptance suite for sources: a good one passes every rule, and each rule catches the source that breaks it."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import ConfigDict

from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, Options, SnapshotRefused, SnapshotRequest, SourceConnector
from conduit_py.testing import acceptance, source_checks
from conduit_py.testing.connector_driver import DoesNotApply, SourceCase, run_check
from conduit_py.testing.event_log import numbered_record
from conduit_py.testing.source_checks import SOURCE_CHECKS


class CountOptions(Options):
    count: int
    bounded: bool = True


class Good(SourceConnector[CountOptions]):
    """Numbered records, with sync methods as most connectors have."""

    def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1
        self._stopped = threading.Event()

    def start_position(self) -> bytes:
        return b"%d" % (self._next - 1)

    def read(self, n: int) -> list[Record]:
        numbers = range(self._next, min(self._next + n, self.options.count))
        if not numbers:
            if not self.options.bounded:
                self._stopped.wait()
            raise EndOfSource
        self._next = numbers.stop
        return [numbered_record(number) for number in numbers]

    def stop(self) -> None:
        self._stopped.set()


class AnyOptions(CountOptions):
    model_config = ConfigDict(extra="allow")


class TakesAnyOption(SourceConnector[AnyOptions]):
    def read(self, n: int) -> list[Record]:
        raise EndOfSource


class FillsInRequiredOptions(Good):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"count": 5} | options)


class ReturnsTooMany(Good):
    def read(self, n: int) -> list[Record]:
        return super().read(n + 1)


class ReturnsNothing(Good):
    def read(self, n: int) -> list[Record]:
        return []


class ReturnsSomethingElse(Good):
    def read(self, n: int) -> list[Record]:
        return [b"no record"]  # type: ignore[list-item]


class HasNoPositions(Good):
    def read(self, n: int) -> list[Record]:
        return [Record.of(record.payload.after) for record in super().read(n)]


class RepeatsPositions(Good):
    def read(self, n: int) -> list[Record]:
        records = super().read(n)
        for record in records:
            record.position = b"%d" % (int(record.position) // 2)
        return records


class ChangesItsOrder(Good):
    runs: ClassVar[int] = 0

    def open(self, position: bytes | None) -> None:
        super().open(position)
        type(self).runs += 1

    def read(self, n: int) -> list[Record]:
        records = super().read(1)
        for record in records:
            record.payload["n"] = record.payload["n"] ^ (self.runs % 2)
        return records


class ResumesTooEarly(Good):
    def open(self, position: bytes | None) -> None:
        super().open(position)
        self._next = 0 if position is None else int(position)


class ResumesTooLate(Good):
    def open(self, position: bytes | None) -> None:
        super().open(position)
        self._next += 0 if position is None else 1


class StartsOverAtTheEnd(Good):
    def open(self, position: bytes | None) -> None:
        super().open(position)
        self._next %= self.options.count


class ComesBack(Good):
    def read(self, n: int) -> list[Record]:
        try:
            return super().read(n)
        except EndOfSource:
            self._next = self.options.count - 1
            raise


class IgnoresStop(Good):
    def stop(self) -> None:
        pass


class TakesOneAckOnly(Good):
    acked = False

    def ack(self, positions: Sequence[bytes]) -> None:
        assert not self.acked
        self.acked = True


class StartsWhereTheLastRunStopped(Good):
    kept: ClassVar[int] = 0

    def open(self, position: bytes | None) -> None:
        super().open(position)
        self._next = max(self._next, self.kept)

    def stop(self) -> None:
        type(self).kept = self._next + 1


class RemembersWhatItRead(Good):
    kept: ClassVar[int] = 0

    def open(self, position: bytes | None) -> None:
        super().open(position)
        if position is None:
            self._next = type(self).kept % 2

    def read(self, n: int) -> list[Record]:
        records = super().read(n)
        type(self).kept += n == 1
        return records


class StartsBehindItsFirstRecord(Good):
    def start_position(self) -> bytes:
        return b"%d" % self._next


class CannotBeTornDownUnread(Good):
    def read(self, n: int) -> list[Record]:
        self.buffer = b""
        return super().read(n)

    def teardown(self) -> None:
        del self.buffer


class CannotBeTornDownUnopened(Good):
    def teardown(self) -> None:
        self._stopped.set()


class HasABrokenHook(Good):
    def on_updated(self, before: dict[str, Any]) -> None:
        raise KeyError("cuont")


class LeavesFilesOpen(Good):
    def open(self, position: bytes | None) -> None:
        super().open(position)
        self.file = open(__file__)  # noqa: SIM115


class LeavesThreadsRunning(Good):
    """Its threads end with the test, however long the look for them takes on a busy machine."""

    over: ClassVar = threading.Event()

    def open(self, position: bytes | None) -> None:
        super().open(position)
        threading.Thread(target=self.over.wait, daemon=True).start()


@pytest.fixture(autouse=True)
def _end_threads() -> Iterator[None]:
    LeavesThreadsRunning.over.clear()
    yield
    LeavesThreadsRunning.over.set()


class TakesEveryRequest(Good):
    async def request_snapshot(self, request: SnapshotRequest) -> None:
        pass


class RefusesRequests(Good):
    async def request_snapshot(self, request: SnapshotRequest) -> None:
        raise SnapshotRefused("there is no such collection", suggestion="collections are numbers")


class FailsForRequests(Good):
    async def request_snapshot(self, request: SnapshotRequest) -> None:
        raise KeyError(request.collection)


def test_a_source_that_refuses_requests_for_what_it_does_not_have_passes() -> None:
    run_check(source_checks.refuses_snapshots_that_it_cannot_read, SourceCase(RefusesRequests(count=7)))


@pytest.mark.parametrize("check", SOURCE_CHECKS)
@pytest.mark.parametrize("bounded", [True, False])
def test_a_good_source_passes(check: Any, bounded: bool) -> None:
    case = SourceCase(Good(count=7, bounded=bounded), records=None if bounded else 7)
    try:
        run_check(check, case)
    except DoesNotApply:
        assert check in (
            source_checks.ends_and_stays_ended,
            source_checks.ends_a_waiting_read_when_stopped,
            source_checks.resumes_after_progress_without_a_record,
            source_checks.has_whole_groups,
            source_checks.announces_schemas_with_their_records,
            source_checks.refuses_snapshots_that_it_cannot_read,
        )


def test_a_good_source_has_good_options() -> None:
    for check in acceptance.OPTION_CHECKS:
        check(Good(count=7))


@pytest.mark.parametrize(
    ("check", "source", "says"),
    [
        (acceptance.options_are_valid, Good(count="many"), "problems in its options: .*count: Input should be"),
        (acceptance.options_that_do_not_exist_are_refused, TakesAnyOption(count=5), "does not exist is accepted"),
        (
            acceptance.required_options_are_required,
            FillsInRequiredOptions(),
            "a missing option 'count' is not reported",
        ),
    ],
)
def test_broken_options_are_caught(check: Any, source: SourceConnector[Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check(source)


@pytest.mark.parametrize(
    ("check", "source", "says"),
    [
        (source_checks.reads_what_it_holds, Good(count=2), "gave 2 records: the suite needs at least 3"),
        (source_checks.reads_what_it_holds, ReturnsNothing(count=5), "returned nothing"),
        (source_checks.reads_what_it_holds, ReturnsSomethingElse(count=5), "must return records, not bytes"),
        (source_checks.reads_what_it_holds, HasNoPositions(count=5), "without a position"),
        (source_checks.never_reads_more_than_asked_for, ReturnsTooMany(count=5), r"read\(1\) returned 2 records"),
        (source_checks.gives_every_record_a_position_of_its_own, RepeatsPositions(count=5), "have the position b'0'"),
        (source_checks.reads_the_same_again, ChangesItsOrder(count=5), "other records, or another order"),
        (source_checks.resumes_after_every_position, ResumesTooEarly(count=5), "opened at b'0'.*again"),
        (
            source_checks.resumes_after_every_position,
            ResumesTooLate(count=5),
            "at b'0', it gives b'2'.*not b'1'",
        ),
        (source_checks.resumes_after_every_position, StartsOverAtTheEnd(count=30), "opened at b'29', it gives b'0'"),
        (source_checks.refuses_snapshots_that_it_cannot_read, TakesEveryRequest(count=5), "which it cannot have"),
        (source_checks.refuses_snapshots_that_it_cannot_read, FailsForRequests(count=5), "KeyError, not SnapshotRef"),
        (source_checks.starts_again_where_it_started, StartsBehindItsFirstRecord(count=5), "gives other records"),
        (source_checks.ends_and_stays_ended, ComesBack(count=5), "after EndOfSource, read returned the position b'4'"),
        (source_checks.takes_acks_in_order, TakesOneAckOnly(count=5), None),
        (source_checks.goes_on_after_being_stopped, StartsWhereTheLastRunStopped(count=5), "at b'0', it gives b'2'"),
        (source_checks.shares_nothing_between_runs, RemembersWhatItRead(count=5), "an earlier run, with nothing acked"),
        (source_checks.can_be_torn_down_without_reading, CannotBeTornDownUnread(count=5), None),
        (source_checks.can_be_torn_down_after_a_failed_open, CannotBeTornDownUnopened(count=5), None),
        (source_checks.has_hooks_that_work, HasABrokenHook(count=5), "cuont"),
        (source_checks.leaks_nothing, LeavesFilesOpen(count=5), "3 open files are left behind"),
        (source_checks.leaks_nothing, LeavesThreadsRunning(count=5), "3 threads are left behind"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SourceConnector) else getattr(value, "__name__", None),
)
def test_each_rule_catches_the_source_that_breaks_it(check: Any, source: Good, says: str | None) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError), match=says):
        run_check(check, SourceCase(source))


def test_a_source_that_ignores_a_stop_is_caught() -> None:
    case = SourceCase(IgnoresStop(count=3, bounded=False), records=3)

    with pytest.raises(AssertionError, match="did not end within 1 seconds"):
        run_check(source_checks.ends_a_waiting_read_when_stopped, case, seconds=1)


def test_a_source_without_an_end_must_say_how_many_records_it_holds() -> None:
    with pytest.raises(AssertionError, match="more than 10000 records and no end: give the suite records="):
        run_check(source_checks.reads_what_it_holds, SourceCase(Good(count=10**6)))


def test_a_source_that_hangs_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"did not end within 0.1 seconds"):
        run_check(source_checks.reads_what_it_holds, SourceCase(Good(count=3, bounded=False)), seconds=0.1)
