"""Attempts: retries and conditions around the calls of a processor, for those that declare them."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import trio

from conduit_py.backoff import Retry
from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.state import Defer
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.user_errors import as_plugin_error


class GivenUp(NamedTuple):
    """The result for a record that failed in every attempt: the last error, and the record as it came to this node."""

    error: Exception
    attempts: int
    record: Record


Results: TypeAlias = list[Any]
"""One result per record, in order: a record or payload, None, a list, an error, or GivenUp."""

ResultsOf: TypeAlias = Callable[[Batch], Results | Awaitable[Results]]


async def finish(results: Results | Awaitable[Results]) -> Results:
    """Return results that may have to be awaited."""
    return results if isinstance(results, list) else await results


def where(when: Callable[[Record], bool], results_of: ResultsOf) -> Callable[[Batch], Awaitable[Results]]:
    """Call only with the records for which the condition is true; each of the others is its own result."""

    async def results_where(batch: Batch) -> Results:
        chosen, results = _choose(when, batch.records)
        if chosen:
            answers = await finish(results_of(batch.select(chosen)))
            for index, answer in zip(chosen, answers, strict=True):
                results[index] = answer
        return results

    return results_where


def _choose(when: Callable[[Record], bool], records: list[Record]) -> tuple[list[int], list[Any]]:
    """Return the indices for which the condition is true, and the results of the others."""
    results: list[Any] = list(records)
    chosen = []
    for index, record in enumerate(records):
        try:
            if when(record):
                chosen.append(index)
        except Defer as error:
            raise CannotDefer("a condition raised Defer", suggestion="raise it in the processor itself") from error
        except BaseException as error:  # plugin boundary: the condition is the user's
            results[index] = as_plugin_error(error)
    return chosen, results


def with_retries(
    attempt: ResultsOf, retry: Retry, meter: Meter, rng: random.Random
) -> Callable[[Batch], Awaitable[Results]]:
    """Repeat the attempt for the records that fail, by the policy."""

    async def results_with_retries(batch: Batch) -> Results:
        # A failed attempt may have changed its record; every attempt starts from the record as it came.
        pristine = [record.copy() for record in batch.records]
        results = await finish(attempt(batch))
        attempts = dict.fromkeys(range(len(batch)), 1)
        for number in range(1, retry.attempts):
            failed = [index for index, result in enumerate(results) if _worth_retrying(result)]
            if not failed:
                break
            meter.retries += 1
            with meter.waiting(WaitReason.BACK_OFF):
                await trio.sleep(retry.delay(number, rng))
            part = batch.select(failed).with_values([pristine[index].copy() for index in failed])
            again = await finish(attempt(part))
            for index, result in zip(failed, again, strict=True):
                results[index] = result
                attempts[index] = number + 1
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, Defer):
                results[index] = GivenUp(result, attempts[index], pristine[index])
        return results

    return results_with_retries


def _worth_retrying(result: object) -> bool:
    return isinstance(result, Exception) and not isinstance(result, RecordRefused | Defer)
