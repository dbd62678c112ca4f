"""What every destination that stages must do: the rules of conduit_py.sdk.StagedDestination, one function each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from conduit_py.sdk.destination import StagedDestination, TransactionalDestination
from conduit_py.testing.connector_checks import DestinationCheck, DoesNotApply
from conduit_py.testing.connector_driver import (
    DestinationCase,
    DestinationDriver,
    batch_of,
    opened_destination,
    require,
)

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
        require(destination.said == b"first", f"claim gave {destination.said!r}, not what was committed last")
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
    """An open destination in a transaction, and what it said when it was claimed."""

    def __init__(self, driver: DestinationDriver, said: bytes | None) -> None:
        self.call = driver.call
        self.said = said


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
    records = [case.sample(number) for number in range(start, stop)]
    refused = await destination.call("write", batch_of(records, first=start))
    require(not refused, f"records that should be accepted were refused: {refused}")


def _shows(case: DestinationCase, count: int) -> None:
    stored, expected = list(case.stored()), [case.sample(number).payload.after for number in range(count)]
    require(stored == expected, f"shows {stored} where {expected} was committed")
