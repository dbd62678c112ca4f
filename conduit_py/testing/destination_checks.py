"""What every destination must do: the rules of conduit_py.sdk.DestinationConnector, one function each."""

from typing import Any

from conduit_py.record import Record
from conduit_py.sdk.destination import WriteGuarantee
from conduit_py.testing.connector_checks import DestinationCheck, DoesNotApply, leaves_nothing_behind
from conduit_py.testing.connector_driver import (
    DestinationCase,
    DestinationDriver,
    batch_of,
    opened_destination,
    require,
)


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
        batch = batch_of(records, pieces=[(0,), (1,), (2,)])
        refused = await destination.deliver(batch)
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
    good = _samples(case, 2)
    bad = case.refused.copy()
    bad.position = b"refused"
    async with opened_destination(case) as destination:
        refused = await destination.deliver(batch_of([good[0], bad, good[1]]))
    require(set(refused) == {1}, f"of three records the one at index 1 was to be refused, but it was {set(refused)}")
    require(bool(refused[1].strip()), "a record was refused without a reason")
    _holds(case, good)


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


def _holds(case: DestinationCase, records: list[Record]) -> None:
    stored, expected = list(case.stored()), _payloads(records)
    require(stored == expected, f"holds {stored} where {expected} was written")


def _payloads(records: list[Record]) -> list[Any]:
    return [record.payload.after for record in records]
