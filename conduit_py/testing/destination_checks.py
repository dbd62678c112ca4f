"""What every destination must do: the rules of DestinationConnector and StagedDestination, one function each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from conduit_py.batch import Batch
from conduit_py.record import Record
from conduit_py.sdk.destination import AckMode, StagedDestination, TransactionalDestination, WriteGuarantee
from conduit_py.testing.connector_driver import (
    DestinationCase,
    DestinationCheck,
    DestinationDriver,
    DoesNotApply,
    batch_of,
    leaves_nothing_behind,
    opened_destination,
    require,
)
from conduit_py.testing.script import InterruptedRecords


async def keeps_what_it_accepts_in_order(case: DestinationCase) -> None:
    records = _samples(case, 5)
    async with opened_destination(case) as destination:
        await _accepts(destination, records)
        # Before teardown: what counts as handled must be there by now, not some time later.
        _holds(case, records)


async def keeps_several_batches_in_order(case: DestinationCase) -> None:
    records = _samples(case, 9)
    async with opened_destination(case) as destination:
        for start, stop in ((0, 1), (1, 3), (3, 9)):
            await _accepts(destination, records[start:stop], first=start)
    _holds(case, records)


async def takes_records_of_several_sources(case: DestinationCase) -> None:
    records = _samples(case, 4)
    async with opened_destination(case) as destination:
        for index, record in enumerate(records):
            await _accepts(destination, [record], first=index // 2, source="ab"[index % 2])
    _holds(case, records)


async def takes_the_pieces_of_a_split_record(case: DestinationCase) -> None:
    records = _samples(case, 3)
    for record in records:
        record.position = records[0].position
    async with opened_destination(case) as destination:
        refused = await destination.deliver(batch_of(records, pieces=[(0,), (1,), (2,)]))
    require(not refused, f"pieces of a split record were refused: {refused}")
    _holds(case, records)


async def keeps_what_it_has_over_runs(case: DestinationCase) -> None:
    records = _samples(case, 4)
    for start in (0, 2):
        async with opened_destination(case) as destination:
            await _accepts(destination, records[start : start + 2], first=start)
    _holds(case, records)


async def takes_the_same_records_again(case: DestinationCase) -> None:
    """After a crash the last batches are written again: that must work, and count once if it is idempotent."""
    records = _samples(case, 3)
    for _ in range(2):
        async with opened_destination(case) as destination:
            await _accepts(destination, records)
    stored, expected = list(case.stored()), _payloads(records)
    if case.connector.guarantee is WriteGuarantee.IDEMPOTENT:
        require(stored == expected, f"idempotent by delivery key, but holds {stored} after writing {expected} twice")
    missing = [payload for payload in expected if payload not in stored]
    require(not missing, f"after writing the same records again, these are missing: {missing}")


async def flushes_when_there_is_nothing_to_flush(case: DestinationCase) -> None:
    async with opened_destination(case) as destination:
        await destination.flush()
        await _accepts(destination, _samples(case, 1))
        await destination.flush()
        await destination.flush()
    _holds(case, _samples(case, 1))


async def refuses_single_records_only(case: DestinationCase) -> None:
    if case.refused is None:
        raise DoesNotApply("the suite was given no record to refuse")
    good, bad = _samples(case, 2), case.refused.copy()
    bad.position = b"refused"
    async with opened_destination(case) as destination:
        refused = await destination.deliver(batch_of([good[0], bad, good[1]]))
    require(set(refused) == {1}, f"of three records the one at index 1 was to be refused, but it was {set(refused)}")
    require(bool(refused[1].strip()), "a record was refused without a reason")
    _holds(case, good)


async def reports_what_it_could_not_write(case: DestinationCase) -> None:
    """A write that fails half-way raises, or refuses records: if it returns, the records count as handled."""
    records = _samples(case, 4)
    async with opened_destination(case) as destination:
        refused = await _try(destination, _interrupted(records))
    what = "the batch could not be read to its end, but write returned as if all records were written"
    require(refused is None or len(refused) >= 2, f"{what}: let the error pass, or return the refused records")


async def reports_that_its_system_cannot_be_reached(case: DestinationCase) -> None:
    """An error of the client must pass: a destination that swallows it loses records, and no other rule notices."""
    refused = await _write_in_outage(case, _samples(case, 4))
    what = "the system could not be reached, but all records count as handled"
    require(refused is None or len(refused) == 4, f"{what}: let the error pass, or return the refused records")


async def writes_a_batch_again_after_an_error(case: DestinationCase) -> None:
    """After an error the whole batch is written again, by the same instance or, after a restart, by another."""
    records = _samples(case, 4)
    later = case.connector.acks is AckMode.LATER
    async with opened_destination(case) as destination:
        await _try(destination, _interrupted(records))
        # A destination that answers later may answer for what it has got: only a restart forgets that.
        if not later:
            await _accepts(destination, records)
    if later:
        async with opened_destination(case) as destination:
            await _accepts(destination, records)
    _has_all(case, records)
    if case.outage is not None:
        more = [case.sample(number) for number in range(4, 8)]
        await _write_in_outage(case, more, first=4)
        async with opened_destination(case) as destination:
            await _accepts(destination, more, first=4)
        _has_all(case, records + more)


async def leaves_records_as_they_are(case: DestinationCase) -> None:
    records = _samples(case, 3)
    async with opened_destination(case) as destination:
        await _accepts(destination, records)
    changed = [index for index, (now, was) in enumerate(zip(records, _samples(case, 3), strict=True)) if now != was]
    require(not changed, f"write changed the records {changed}, which other destinations share")


async def can_be_torn_down_without_writing(case: DestinationCase) -> None:
    before = list(case.stored())
    async with opened_destination(case):
        pass
    require(list(case.stored()) == before, "a run that wrote nothing changed what is stored")


async def has_hooks_that_work(case: DestinationCase) -> None:
    destination = DestinationDriver(case)
    await destination.hook("on_created")
    await destination.hook("on_updated", case.connector.options.model_dump())
    await destination.open()
    await destination.teardown()
    await DestinationDriver(case).hook("on_deleted")


async def leaks_nothing(case: DestinationCase) -> None:
    async def live(alive: list[Any]) -> None:
        async with opened_destination(case) as destination:
            alive.append(destination.connector)
            await destination.deliver(batch_of(_samples(case, 1)))

    await leaves_nothing_behind(live)


DESTINATION_CHECKS: tuple[DestinationCheck, ...] = (
    keeps_what_it_accepts_in_order,
    keeps_several_batches_in_order,
    takes_records_of_several_sources,
    takes_the_pieces_of_a_split_record,
    keeps_what_it_has_over_runs,
    takes_the_same_records_again,
    flushes_when_there_is_nothing_to_flush,
    refuses_single_records_only,
    reports_what_it_could_not_write,
    reports_that_its_system_cannot_be_reached,
    writes_a_batch_again_after_an_error,
    leaves_records_as_they_are,
    can_be_torn_down_without_writing,
    has_hooks_that_work,
    leaks_nothing,
)


def _samples(case: DestinationCase, count: int) -> list[Record]:
    return [case.sample(number) for number in range(count)]


async def _accepts(
    destination: DestinationDriver, records: list[Record], *, first: int = 0, source: str = "source"
) -> None:
    refused = await destination.deliver(batch_of(records, first=first, source=source))
    require(not refused, f"records that should be accepted were refused: {refused}")


def _interrupted(records: list[Record]) -> Batch:
    whole = batch_of(records)
    return Batch(whole.span, InterruptedRecords(records), whole.sequences)


async def _try(destination: DestinationDriver, batch: Batch) -> dict[int, str] | None:
    """Return the refused records, or None if the destination raised an error."""
    try:
        return await destination.deliver(batch)
    except AssertionError:
        raise
    except Exception:  # whatever it is that the connector raises
        return None


async def _write_in_outage(case: DestinationCase, records: list[Record], first: int = 0) -> dict[int, str] | None:
    if case.outage is None:
        raise DoesNotApply("the suite was given no outage to try it in")
    try:
        with case.outage():
            async with opened_destination(case) as destination:
                return await _try(destination, batch_of(records, first=first))
    except AssertionError:
        raise
    except Exception:  # It may notice at once, in `open`, or not before `teardown`.
        return None


def _has_all(case: DestinationCase, records: list[Record]) -> None:
    stored = list(case.stored())
    missing = [payload for payload in _payloads(records) if payload not in stored]
    require(not missing, f"written again after an error, these are missing: {missing}")


def _holds(case: DestinationCase, records: list[Record]) -> None:
    stored, expected = list(case.stored()), _payloads(records)
    require(stored == expected, f"holds {stored} where {expected} was written")


def _payloads(records: list[Record]) -> list[Any]:
    return [record.payload.after for record in records]


OWNER = "acceptance"


async def shows_what_it_staged_when_it_is_applied_and_not_before(case: DestinationCase) -> None:
    before = list(case.stored())
    async with _begin(case, 1) as destination:
        intent = await _stage(destination, case, 0, 3)
        require(list(case.stored()) == before, "what was only staged can be seen")
        await destination.call("apply", intent)
        _shows(case, 3)


async def applies_an_intent_once(case: DestinationCase) -> None:
    async with _begin(case, 1) as destination:
        first = await _stage(destination, case, 0, 2)
        await destination.call("apply", first)
        second = await _stage(destination, case, 2, 3)
        await destination.call("apply", second)
        await destination.call("apply", second)
        _shows(case, 3)


async def has_nothing_to_apply_when_nothing_was_written(case: DestinationCase) -> None:
    async with _begin(case, 1) as destination:
        require(await destination.call("stage") is None, "stage gave an intent when nothing was written")
        await destination.call("apply", await _stage(destination, case, 0, 1))
        require(await destination.call("stage") is None, "stage gave an intent for what was staged before")


async def discards_what_was_not_committed(case: DestinationCase) -> None:
    async with _begin(case, 1) as destination:
        await _stage(destination, case, 0, 3)
    async with _begin(case, 2) as destination:
        await destination.call("apply", await _stage(destination, case, 0, 2))
    _shows(case, 2)


async def applies_what_was_committed_when_it_begins_again(case: DestinationCase) -> None:
    async with _begin(case, 1) as destination:
        intent = await _stage(destination, case, 0, 3)
    for fence in (2, 3):
        async with _begin(case, fence, [intent]):
            _shows(case, 3)


async def keeps_a_commit_with_its_data_or_neither(case: DestinationCase) -> None:
    if not isinstance(case.connector, TransactionalDestination):
        raise DoesNotApply("it cannot carry a commit")
    before = list(case.stored())
    async with _claim(case, 1) as destination:
        await _write(destination, case, 0, 2)
        require(list(case.stored()) == before, "what was written can be seen before it is committed")
        await destination.call("commit", b"first")
        await _write(destination, case, 2, 3)
    async with _claim(case, 2) as destination:
        require(destination.committed == b"first", f"claim returned {destination.committed!r}, not the last commit")
        await destination.call("commit", b"second")
    _shows(case, 2)


STAGED_CHECKS: tuple[DestinationCheck, ...] = (
    shows_what_it_staged_when_it_is_applied_and_not_before,
    applies_an_intent_once,
    has_nothing_to_apply_when_nothing_was_written,
    discards_what_was_not_committed,
    applies_what_was_committed_when_it_begins_again,
    keeps_a_commit_with_its_data_or_neither,
)


class _Staging:
    """An open destination in a transaction, and what `claim` returned."""

    def __init__(self, driver: DestinationDriver, committed: bytes | None) -> None:
        self.call, self.committed = driver.call, committed


@asynccontextmanager
async def _claim(case: DestinationCase, fence: int) -> AsyncIterator[_Staging]:
    async with opened_destination(case) as driver:
        databases = isinstance(case.connector, TransactionalDestination)
        yield _Staging(driver, await driver.call("claim", OWNER, fence) if databases else None)


@asynccontextmanager
async def _begin(case: DestinationCase, fence: int, intents: Sequence[bytes] = ()) -> AsyncIterator[_Staging]:
    if not isinstance(case.connector, StagedDestination):
        raise DoesNotApply("it does not stage")
    async with _claim(case, fence) as staging:
        await staging.call("begin", OWNER, fence, list(intents))
        yield staging


async def _stage(destination: _Staging, case: DestinationCase, start: int, stop: int) -> bytes:
    await _write(destination, case, start, stop)
    intent = await destination.call("stage")
    require(isinstance(intent, bytes), f"stage must return bytes for what was written, not {type(intent).__name__}")
    assert isinstance(intent, bytes)
    return intent


async def _write(destination: _Staging, case: DestinationCase, start: int, stop: int) -> None:
    refused = await destination.call("write", batch_of(_samples(case, stop)[start:], first=start))
    require(not refused, f"records that should be accepted were refused: {refused}")


def _shows(case: DestinationCase, count: int) -> None:
    stored, expected = list(case.stored()), [case.sample(number).payload.after for number in range(count)]
    require(stored == expected, f"shows {stored} where {expected} was committed")
