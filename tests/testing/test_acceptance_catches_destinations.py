"""The acceptance suite for destinations: a good one passes, and each rule catches what breaks it."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar

import pytest
import trio

from conduit_py.batch import Batch, MessageId
from conduit_py.record import Record
from conduit_py.sdk import AckMode, Answer, DestinationConnector, Options, WriteGuarantee
from conduit_py.testing import destination_checks
from conduit_py.testing.connector_driver import DestinationCase, leaves_nothing_behind, run_check
from conduit_py.testing.destination_checks import DESTINATION_CHECKS
from conduit_py.testing.event_log import numbered_record


class Disk:
    """The system behind the destinations under test."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.keys: set[bytes] = set()
        self.is_down = False

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.is_down = True
        yield
        self.is_down = False

    def append(self, rows: list[Any]) -> None:
        if self.is_down:
            raise DiskFailed("the disk does not answer")
        self.rows += rows


class DiskFailed(Exception):
    """What the client of this system raises."""


class DiskOptions(Options):
    disk: Disk


class Good(DestinationConnector[DiskOptions]):
    """Appends payloads; refuses records whose payload is raw."""

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        raw = [index for index, record in enumerate(batch) if isinstance(record.payload.after, bytes)]
        self.store([batch[index].payload.after for index in range(len(batch)) if index not in raw])
        return dict.fromkeys(raw, "raw bytes are not taken") or None

    def store(self, rows: list[Any]) -> None:
        self.options.disk.append(rows)


class GoodAtFlush(Good):
    acks = AckMode.FLUSH

    def open(self) -> None:
        self.buffer: list[Any] = []

    def store(self, rows: list[Any]) -> None:
        self.buffer += rows

    def flush(self) -> None:
        self.options.disk.append(self.buffer)
        self.buffer = []


class GoodLater(Good):
    acks = AckMode.LATER

    def open(self) -> None:
        self.waiting: list[tuple[Answer, Any]] = []

    def write(self, batch: Batch) -> None:
        for index, record in enumerate(batch):
            raw = isinstance(record.payload.after, bytes)
            answer = Answer(batch.id(index), "raw bytes are not taken" if raw else None)
            self.waiting.append((answer, record.payload.after))

    def answers(self) -> Sequence[Answer]:
        answer, row = self.waiting.pop(0)
        if answer.refused is None:
            self.options.disk.append([row])
        return [answer]


class GoodAndIdempotent(Good):
    guarantee = WriteGuarantee.IDEMPOTENT

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        keys = [batch.delivery_key(index) for index in range(len(batch))]
        new = [index for index, key in enumerate(keys) if key not in self.options.disk.keys]
        refused = super().write(batch.select(new)) or {}
        # Afterwards: before the write, an error would leave keys without their records.
        self.options.disk.keys.update(keys)
        return {new[index]: reason for index, reason in refused.items()} or None


class StoresNothing(Good):
    def store(self, rows: list[Any]) -> None:
        pass


class StoresBackwards(Good):
    def store(self, rows: list[Any]) -> None:
        super().store(rows[::-1])


class PutsLaterBatchesFirst(Good):
    def store(self, rows: list[Any]) -> None:
        self.options.disk.rows[:0] = rows


class PromisesTooEarly(GoodAtFlush):
    acks = AckMode.WRITE

    def teardown(self) -> None:
        self.flush()


class ConfusesSources(Good):
    def write(self, batch: Batch) -> None:
        self.options.disk.keys.add(batch.source.encode())
        if len(self.options.disk.keys) == 1:
            super().write(batch)


class TakesPiecesForDuplicates(Good):
    def write(self, batch: Batch) -> None:
        super().write(batch.select([i for i in range(len(batch)) if batch.sequences[i] not in batch.sequences[:i]]))


class StartsAnew(Good):
    def open(self) -> None:
        self.options.disk.rows.clear()


class ClaimsIdempotence(Good):
    guarantee = WriteGuarantee.IDEMPOTENT


class SwapsForNewest(Good):
    """Keeps only what it has not seen before, and forgets the rest on the second time."""

    def store(self, rows: list[Any]) -> None:
        self.options.disk.rows[:] = [row for row in self.options.disk.rows + rows if row not in self.options.disk.rows]


class CannotFlushNothing(GoodAtFlush):
    def flush(self) -> None:
        assert self.buffer
        super().flush()


class RefusesWholeBatches(Good):
    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        refused = super().write(batch)
        return dict.fromkeys(range(len(batch)), "something was wrong") if refused else None


class RefusesNobody(Good):
    def write(self, batch: Batch) -> None:
        self.store([record.payload.after for record in batch])


class RefusesWithoutReason(Good):
    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        return dict.fromkeys(super().write(batch) or {}, "")


class RefusesIndicesItWasNotGiven(Good):
    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        return {len(batch): "off by one"}


class ReturnsACount(Good):
    def write(self, batch: Batch) -> int:  # type: ignore[override]
        super().write(batch)
        return len(batch)


class SwallowsErrors(Good):
    """Logs what goes wrong, and goes on."""

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        try:
            return super().write(batch)
        except Exception:
            return None


class SwallowsErrorsOfItsClient(Good):
    def store(self, rows: list[Any]) -> None:
        with suppress(DiskFailed):
            super().store(rows)


class SwallowsErrorsAtFlush(GoodAtFlush):
    def flush(self) -> None:
        with suppress(DiskFailed):
            super().flush()


class LosesABatchAfterAnError(Good):
    """Marks records as done first. When the write fails and comes again, it skips them."""

    guarantee = WriteGuarantee.IDEMPOTENT

    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        keys = [batch.delivery_key(index) for index in range(len(batch))]
        new = [index for index, key in enumerate(keys) if key not in self.options.disk.keys]
        self.options.disk.keys.update(keys)
        return super().write(batch.select(new))


class ChangesRecords(Good):
    def write(self, batch: Batch) -> None:
        for record in batch:
            record.payload["written"] = True
        super().write(batch)


class TouchesOnOpen(Good):
    def teardown(self) -> None:
        self.options.disk.rows.append("closed")


class HasABrokenHook(Good):
    def on_created(self) -> None:
        raise KeyError("tabel")


class LeavesFilesOpen(Good):
    def open(self) -> None:
        self.file = open(__file__)  # noqa: SIM115


class LeavesThreadsRunning(Good):
    """Its threads end with the test, however long the look for them takes on a busy machine."""

    over: ClassVar = threading.Event()

    def open(self) -> None:
        threading.Thread(target=self.over.wait, daemon=True).start()


@pytest.fixture(autouse=True)
def _end_threads() -> Iterator[None]:
    LeavesThreadsRunning.over.clear()
    yield
    LeavesThreadsRunning.over.set()


class AnswersTwice(GoodLater):
    def answers(self) -> Sequence[Answer]:
        return [*super().answers()] * 2


class AnswersForStrangers(GoodLater):
    def answers(self) -> Sequence[Answer]:
        return [Answer(MessageId("nobody", 0))]


class AnswersBeforeStoring(GoodLater):
    def answers(self) -> Sequence[Answer]:
        return [self.waiting.pop(0)[0]]


def case(kind: type[Good]) -> DestinationCase:
    disk = Disk()
    return DestinationCase(kind(disk=disk), lambda: disk.rows, numbered_record, Record.of(b"raw"), disk.outage)


@pytest.mark.parametrize("check", DESTINATION_CHECKS)
@pytest.mark.parametrize("kind", [Good, GoodAtFlush, GoodLater, GoodAndIdempotent])
def test_a_good_destination_passes(check: Any, kind: type[Good]) -> None:
    run_check(check, case(kind))


@pytest.mark.parametrize(
    ("check", "kind", "says"),
    [
        ("keeps_what_it_accepts_in_order", StoresNothing, r"holds \[\] where"),
        ("keeps_what_it_accepts_in_order", StoresBackwards, "where"),
        ("keeps_what_it_accepts_in_order", PromisesTooEarly, r"holds \[\] where"),
        ("keeps_what_it_accepts_in_order", ReturnsACount, "must return None or a mapping of index to reason, not int"),
        ("keeps_what_it_accepts_in_order", RefusesIndicesItWasNotGiven, "refused record 5 of a batch of 5"),
        ("keeps_what_it_accepts_in_order", AnswersTwice, "not waiting for an answer"),
        ("keeps_what_it_accepts_in_order", AnswersForStrangers, "answered for .*nobody"),
        ("keeps_what_it_accepts_in_order", AnswersBeforeStoring, r"holds \[\] where"),
        ("keeps_several_batches_in_order", PutsLaterBatchesFirst, "where"),
        ("takes_records_of_several_sources", ConfusesSources, "where"),
        ("takes_the_pieces_of_a_split_record", TakesPiecesForDuplicates, "where"),
        ("keeps_what_it_has_over_runs", StartsAnew, "where"),
        ("takes_the_same_records_again", ClaimsIdempotence, "idempotent by delivery key, but holds"),
        ("takes_the_same_records_again", SwapsForNewest, "these are missing"),
        ("flushes_when_there_is_nothing_to_flush", CannotFlushNothing, None),
        ("refuses_single_records_only", RefusesWholeBatches, r"it was \{0, 1, 2\}"),
        ("refuses_single_records_only", RefusesNobody, r"it was set\(\)"),
        ("refuses_single_records_only", RefusesWithoutReason, "without a reason"),
        ("reports_what_it_could_not_write", SwallowsErrors, "write returned as if all records were written"),
        ("reports_that_its_system_cannot_be_reached", SwallowsErrorsOfItsClient, "all records count as handled"),
        ("reports_that_its_system_cannot_be_reached", SwallowsErrorsAtFlush, "all records count as handled"),
        ("writes_a_batch_again_after_an_error", LosesABatchAfterAnError, "written again after an error, these are"),
        ("leaves_records_as_they_are", ChangesRecords, r"changed the records \[0, 1, 2\]"),
        ("can_be_torn_down_without_writing", TouchesOnOpen, "a run that wrote nothing changed what is stored"),
        ("has_hooks_that_work", HasABrokenHook, "tabel"),
        ("leaks_nothing", LeavesFilesOpen, "3 open files are left behind"),
        ("leaks_nothing", LeavesThreadsRunning, "3 threads are left behind"),
    ],
)
def test_each_rule_catches_the_destination_that_breaks_it(check: str, kind: type[Good], says: str | None) -> None:
    with pytest.raises((AssertionError, KeyError), match=says):
        run_check(getattr(destination_checks, check), case(kind))


async def test_a_thread_of_somebody_else_that_comes_while_files_are_waited_for_is_not_counted() -> None:
    lives, ended = 0, trio.Event()
    over = threading.Event()

    async def live(alive: list[object]) -> None:
        nonlocal lives
        alive.append(open(__file__))  # noqa: ASYNC230, SIM115
        lives += 1
        if lives == 4:
            ended.set()

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _come_after_the_first_look() -> None:
            await ended.wait()
            threading.Thread(target=over.wait, daemon=True).start()

        with pytest.raises(AssertionError, match="3 open files are left behind"):
            await leaves_nothing_behind(live)
        over.set()


async def test_files_that_somebody_else_opens_once_are_not_counted() -> None:
    lives: list[object] = []
    with ExitStack() as others:

        async def live(alive: list[object]) -> None:
            lives.append(alive)
            if len(lives) == 3:
                others.enter_context(open(__file__))  # noqa: ASYNC230

        await leaves_nothing_behind(live)

    assert len(lives) == 1 + 3 + 3


class NeverReturns(Good):
    def write(self, batch: Batch) -> dict[int, str | Exception] | None:
        time.sleep(3)
        return None


def test_a_rule_that_takes_too_long_names_the_rule_and_the_method() -> None:
    says = (
        r"the rule keeps_what_it_accepts_in_order did not end within 0.1 seconds: NeverReturns.write has not returned"
    )
    with pytest.raises(AssertionError, match=says):
        run_check(destination_checks.keeps_what_it_accepts_in_order, case(NeverReturns), seconds=0.1)


@pytest.mark.parametrize("kind", [SwallowsErrors, LosesABatchAfterAnError])
def test_without_an_outage_to_try_they_are_caught_too(kind: type[Good]) -> None:
    disk, broken = Disk(), []
    tried = DestinationCase(kind(disk=disk), lambda: disk.rows, numbered_record)
    for check in (destination_checks.reports_what_it_could_not_write, CHECK_AGAIN):
        try:
            run_check(check, tried)
        except AssertionError:
            broken.append(check)

    assert len(broken) == 1


CHECK_AGAIN = destination_checks.writes_a_batch_again_after_an_error
