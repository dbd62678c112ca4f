"""What every source must do: the rules of conduit_py.sdk.SourceConnector, one function each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import accumulate
from operator import attrgetter
from typing import Any

import trio

from conduit_py import metadata
from conduit_py.record import Record
from conduit_py.sdk.endpoint import EndpointSource
from conduit_py.sdk.source import EndOfSource, Reading, SharedSource, SnapshotRefused, SnapshotRequest, SourceConnector
from conduit_py.testing.connector_driver import (
    DoesNotApply,
    SourceCase,
    SourceCheck,
    SourceDriver,
    leaves_nothing_behind,
    require,
)

PROMPT_SECONDS = 30.0


@asynccontextmanager
async def opened_source(case: SourceCase, position: bytes | None = None) -> AsyncIterator[SourceDriver]:
    """Open a source, with the background task of one that takes requests or shares its work, and tear it down."""
    driver = SourceDriver(case)
    errors: list[Exception] = []
    try:
        await driver.open(position)
        async with trio.open_nursery() as nursery:
            if isinstance(driver.connector, (EndpointSource, SharedSource)):
                nursery.start_soon(driver.connector.background)
            try:
                yield driver
            except Exception as error:  # raised below, or the nursery would make a group of it
                errors.append(error)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
    finally:
        await driver.teardown()


async def reads_what_it_holds(case: SourceCase) -> None:
    async with opened_source(case) as source:
        count = len(await source.read_all())
    require(count >= 3, f"the source under test gave {count} records: the suite needs at least 3 to tell anything")
    if case.records is not None:
        require(count == case.records, f"the source under test gave {count} records, not {case.records}")


async def never_reads_more_than_asked_for(case: SourceCase) -> None:
    # What a source that cannot resume has given once may be gone for the next.
    for n in (1, 2, 3) if case.resumable else (2,):
        async with opened_source(case) as source:
            await source.read_all(n, limit=case.records or 20)


async def gives_every_record_a_position_of_its_own(case: SourceCase) -> None:
    async with opened_source(case) as source:
        positions = [record.position for record in await source.read_all(2)]
        # Progress may be repeated, but not be the position of a record: it would be skipped or given again.
        positions += {each.position for each in source.readings if each.position is not None}
    twice = sorted({position for position in positions if positions.count(position) > 1})
    require(not twice, f"several records, or a record and progress, have the position {_describe(twice)}")


async def reads_the_same_again(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        once = await source.read_all(100)
    async with opened_source(case) as source:
        again = await source.read_all(1)
    require(_are_same(case, once, again), "reading again from the beginning gave other records, or another order")


async def resumes_after_every_position(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        records = await source.read_all()
    # Resuming goes wrong most often at the end.
    for index in [*range(min(10, len(records))), *range(max(10, len(records) - 3), len(records))]:
        await _resumes_after(case, records, index)


async def resumes_after_progress_without_a_record(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        records = await source.read_all(2)
    counts = accumulate(len(each.records) for each in source.readings)
    progress = [(count, each.position) for count, each in zip(counts, source.readings, strict=True) if each.position]
    if not progress:
        raise DoesNotApply("the source gives no progress without a record")
    for count, position in [*progress[:10], *progress[10:][-3:]]:
        if count == len(records) and not case.bounded:
            continue
        async with opened_source(case, position) as source:
            got = await source.read_all(limit=None if case.bounded else len(records) - count)
        rule = f"opened at its progress {position!r}, it gives {_describe([each.position for each in got])}"
        _require_the_rest(case, got, records[count:], rule)


async def has_whole_groups(case: SourceCase) -> None:
    """A reading has no end of one group and an unfinished one, whatever `n` is; and the source ends between groups."""
    if not case.connector.has_groups:
        raise DoesNotApply("the source has no groups")
    _needs_resuming(case)
    ends: set[int] = set()
    for n in (1, 2, 3, 100):
        async with opened_source(case) as source:
            await source.read_all(n)
        stop, continues = 0, False
        for each in source.readings:
            start, stop, continues = stop, stop + len(each.records), each.continues
            if n == 1 and not continues:
                ends.add(stop)
            divided = sorted(ends & set(range(start + 1, stop)))
            rule = f"read({n}) returned records {start} to {stop - 1}"
            require(not continues or not divided, f"{rule} with continues=True, but a group ends within: {divided}")
            whole = continues or stop in ends
            require(whole, f"{rule} with continues=False, but the group goes on when records are read one by one")
        require(not case.bounded or not continues, "the source ends inside of a group")


async def announces_schemas_with_their_records(case: SourceCase) -> None:
    """The schema of a record was announced since `open`, with the version in its metadata."""
    async with opened_source(case) as source:
        records = await source.read_all(2)
    if not any(each.schemas for each in source.readings):
        raise DoesNotApply("the source has no schemas")
    _require_schemas(source.readings)
    if case.resumable and len(records) > 1:
        async with opened_source(case, records[0].position) as source:
            await source.read_all(2, limit=len(records) - 1)
        _require_schemas(source.readings)


async def refuses_snapshots_that_it_cannot_read(case: SourceCase) -> None:
    """A request for what is not there is refused with what to do, and the source goes on."""
    if type(case.connector).request_snapshot is SourceConnector.request_snapshot:
        raise DoesNotApply("the source takes no requests for snapshots")
    request = SnapshotRequest("conduit_acceptance.no_such_collection")
    async with opened_source(case) as source:
        first = await source.read(1)
        try:
            await source.connector.request_snapshot(request)
        except SnapshotRefused as refused:
            require(bool(refused.suggestion), "it refuses a request without a suggestion")
        except Exception as error:
            raise AssertionError(f"it refuses a request with {type(error).__name__}, not SnapshotRefused") from error
        else:
            raise AssertionError(f"it takes a request for {request.collection!r}, which it cannot have")
        rest = await source.read_all(limit=None if case.records is None else case.records - len(first))
    require(bool(rest), "after a request that it refused it reads nothing any more")


async def starts_again_where_it_started(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        start = await source.start_position()
        if start is None:
            raise DoesNotApply("the source always begins at the same place")
        records = await source.read_all()
    async with opened_source(case, start) as source:
        again = await source.read_all(limit=None if case.bounded else len(records))
    same = _are_equal(again, records, positions=True)
    require(same, f"opened at its start position {start!r}, it gives other records")


async def ends_and_stays_ended(case: SourceCase) -> None:
    if not case.bounded:
        raise DoesNotApply("the source has no end")
    async with opened_source(case) as source:
        await source.read_all()
        for _ in range(2):
            try:
                more = await source.read(1)
            except EndOfSource:
                continue
            raise AssertionError(f"after EndOfSource, read returned the position {more[0].position!r}")


async def ends_a_waiting_read_when_stopped(case: SourceCase) -> None:
    if case.bounded:
        raise DoesNotApply("the source ends by itself, so its reads do not wait")
    async with opened_source(case) as source:
        await source.read_all()
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_to_the_end, source, ended)
            await trio.sleep(0.1)
            with trio.move_on_after(PROMPT_SECONDS):
                await source.stop()
                await ended.wait()
            nursery.cancel_scope.cancel()
    require(ended.is_set(), f"a waiting read did not end within {PROMPT_SECONDS:g} seconds of stop")


async def takes_acks_in_order(case: SourceCase) -> None:
    async with opened_source(case) as source:
        positions = [record.position for record in await source.read_all()]
        await source.ack(positions[:1])
        await source.ack(positions[1:])


async def goes_on_after_being_stopped(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        records = await source.read_all()
    async with opened_source(case) as source:
        first = await source.read(1)
        await source.stop()
    require(_are_same(case, first, records[:1]), "the first record is not always the same")
    await _resumes_after(case, records, 0)


async def shares_nothing_between_runs(case: SourceCase) -> None:
    _needs_resuming(case)
    async with opened_source(case) as source:
        whole = await source.read_all()
    async with opened_source(case) as source:
        await source.read(1)
    async with opened_source(case) as source:
        after = await source.read_all()
    require(_are_same(case, after, whole), "an earlier run, with nothing acked, changed what a later one reads")


async def can_be_torn_down_without_reading(case: SourceCase) -> None:
    async with opened_source(case):
        pass


async def can_be_torn_down_after_a_failed_open(case: SourceCase) -> None:
    source = SourceDriver(case)
    # Whether `open` refuses such a position or not, teardown must work.
    with suppress(Exception):
        await source.open(b"\xff this is no position of yours \x00")
    await source.teardown()


async def has_hooks_that_work(case: SourceCase) -> None:
    source = SourceDriver(case)
    await source.hook("on_created")
    await source.hook("on_updated", case.connector.options.model_dump())
    await source.open(None)
    await source.teardown()
    await SourceDriver(case).hook("on_deleted")


async def leaks_nothing(case: SourceCase) -> None:
    async def live(alive: list[Any]) -> None:
        async with opened_source(case) as source:
            alive.append(source.connector)
            if case.resumable:
                await source.read(1)

    await leaves_nothing_behind(live)


SOURCE_CHECKS: tuple[SourceCheck, ...] = (
    reads_what_it_holds,
    never_reads_more_than_asked_for,
    gives_every_record_a_position_of_its_own,
    reads_the_same_again,
    resumes_after_every_position,
    resumes_after_progress_without_a_record,
    has_whole_groups,
    announces_schemas_with_their_records,
    refuses_snapshots_that_it_cannot_read,
    starts_again_where_it_started,
    ends_and_stays_ended,
    ends_a_waiting_read_when_stopped,
    takes_acks_in_order,
    goes_on_after_being_stopped,
    shares_nothing_between_runs,
    can_be_torn_down_without_reading,
    can_be_torn_down_after_a_failed_open,
    has_hooks_that_work,
    leaks_nothing,
)


def _needs_resuming(case: SourceCase) -> None:
    if not case.resumable:
        raise DoesNotApply("the source is declared as not resumable, or shares its work: it has no position of its own")


async def _resumes_after(case: SourceCase, records: list[Record], index: int) -> None:
    expected, own = records[index + 1 :], records[index].position
    try:
        case.connector.fresh().check_position(own)
    except Exception as error:
        raise AssertionError(f"check_position refuses {own!r}, the position of a record: {error}") from error
    if not expected and not case.bounded:
        return
    async with opened_source(case, own) as source:
        got = await source.read_all(limit=None if case.bounded else len(expected))
    if len(got) == len(expected) + 1 and got[0].position == own:
        raise AssertionError(f"opened at {own!r}, it gives the record of that position again")
    rule = f"opened at {own!r}, it gives {_describe([record.position for record in got])}"
    _require_the_rest(case, got, expected, rule)


def _require_the_rest(case: SourceCase, got: list[Record], expected: list[Record], rule: str) -> None:
    """Require these records after a restart, with the same positions if the source is declared as repeatable."""
    right = _are_equal(got, expected, positions=False)
    require(right, f"{rule}, not {_describe([record.position for record in expected])}")
    advice = "if no record can have the same position again, declare `repeatable = False`"
    require(_are_same(case, got, expected), f"{rule}: the right records, with other positions; {advice}")


def _require_schemas(readings: Sequence[Reading]) -> None:
    announced: dict[str, str] = {}
    for reading in readings:
        announced |= {each.collection: each.version for each in reading.schemas}
        for record in reading.records:
            version = record.metadata.get(metadata.PAYLOAD_SCHEMA_VERSION)
            collection = record.metadata.get(metadata.COLLECTION, "")
            if version is not None and announced.get(collection) != version:
                given = announced.get(collection, "none")
                what = f"a record of {collection!r} has schema version {version!r}, but the last announced is {given!r}"
                raise AssertionError(what)


async def _read_to_the_end(source: SourceDriver, ended: trio.Event) -> None:
    with suppress(EndOfSource):
        await source.read(1)
    ended.set()


def _are_same(case: SourceCase, records: list[Record], others: list[Record]) -> bool:
    """Compare records, with their positions if the source is declared as repeatable."""
    return _are_equal(records, others, positions=case.connector.repeatable)


def _are_equal(records: list[Record], others: list[Record], *, positions: bool) -> bool:
    # Metadata may carry the time of reading, which is never the same twice.
    names = ("position", "operation", "key", "payload") if positions else ("operation", "key", "payload")
    content = attrgetter(*names)
    return list(map(content, records)) == list(map(content, others))


def _describe(positions: list[bytes]) -> str:
    shown = ", ".join(map(repr, positions[:5])) or "nothing"
    return shown + (f" and {len(positions) - 5} more" if len(positions) > 5 else "")
