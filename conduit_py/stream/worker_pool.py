"""WorkerPool: the workers that apply one definition of a processor: its condition, its retries, its lanes."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer, RecordRefused, RunError
from conduit_py.pipeline import Processor
from conduit_py.record import Record
from conduit_py.sdk.defer import Defer
from conduit_py.sdk.processor import Result
from conduit_py.sdk.state import State
from conduit_py.stream.meter import Meter
from conduit_py.stream.worker import Worker


class GivenUp(NamedTuple):
    """How often a record was tried in vain, and the record as it came to this node."""

    attempts: int
    record: Record


class WorkerPool:
    """Gives the results of a processor for batches, in order, from `open` to `close`.

    With several workers a batch is cut into as many pieces, which are put together again in order
    (invariant 1).
    """

    def __init__(
        self, node: str, declared: Processor, meter: Meter, rng: random.Random, state: State | None = None
    ) -> None:
        assert declared.processor is not None
        self._when = declared.when
        self._retry = declared.retry
        self._meter = meter
        self._rng = rng
        several = declared.workers > 1
        self._lanes = [
            Worker(node, declared.processor.fresh(), always_in_thread=several, state=state)
            for _ in range(declared.workers)
        ]
        self._opened: list[Worker] = []

    async def open(self) -> None:
        for lane in self._lanes:
            self._opened.append(lane)
            await lane.open()

    async def close(self) -> None:
        """Close every worker that was opened; raise the first error."""
        opened, self._opened = self._opened, []
        await close_all(opened)

    async def results(self, batch: Batch) -> tuple[list[Result], dict[int, GivenUp]]:
        """One result per record. Records for which the condition is false are their own result."""
        if self._when is None:
            return await self._tried(batch)
        chosen, results = _chosen(self._when, batch.records)
        if not chosen:
            return results, {}
        answers, given_up = await self._tried(batch.select(chosen))
        for index, answer in zip(chosen, answers, strict=True):
            results[index] = answer
        return results, {chosen[index]: each for index, each in given_up.items()}

    async def _tried(self, batch: Batch) -> tuple[list[Result], dict[int, GivenUp]]:
        """The results after as many attempts as the retry policy allows, and what is known of those that failed."""
        if self._retry.attempts == 1:
            return await self._timed(batch), {}
        # A failed attempt may have changed its record; every attempt starts from the record as it came.
        pristine = [record.copy() for record in batch.records]
        results = await self._timed(batch)
        attempts = dict.fromkeys(range(len(batch)), 1)
        for attempt in range(1, self._retry.attempts):
            failed = [index for index, result in enumerate(results) if _worth_retrying(result)]
            if not failed:
                break
            self._meter.retries += 1
            with self._meter.waiting("back-off"):
                await trio.sleep(self._retry.delay(attempt, self._rng))
            for index, result in zip(failed, await self._timed(_again(batch, failed, pristine)), strict=True):
                results[index] = result
                attempts[index] = attempt + 1
        errors = [index for index, result in enumerate(results) if isinstance(result, Exception)]
        return results, {index: GivenUp(attempts[index], pristine[index]) for index in errors}

    async def _timed(self, batch: Batch) -> list[Result]:
        with self._meter.timing(self._meter.calls):
            return await self._run(batch)

    async def _run(self, batch: Batch) -> list[Result]:
        if len(self._lanes) == 1:
            return await self._lanes[0].run(batch)
        size = -(-len(batch) // len(self._lanes))
        parts = [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
        results: list[list[Result]] = [[] for _ in parts]

        async def work(number: int) -> None:
            results[number] = await self._lanes[number].run(batch.select(parts[number]))

        async with trio.open_nursery() as nursery:
            for number in range(len(parts)):
                nursery.start_soon(work, number)
        return [result for part in results for result in part]


async def close_all(opened: "Sequence[Worker | WorkerPool]") -> None:
    """Close them at once, so that none is held up by the others; raise the first error."""
    errors: list[RunError] = []

    async def close(each: "Worker | WorkerPool") -> None:
        try:
            await each.close()
        except RunError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for each in opened:
            nursery.start_soon(close, each)
    if errors:
        raise errors[0]


def _chosen(when: Callable[[Record], bool], records: list[Record]) -> tuple[list[int], list[Result]]:
    """The indices for which the condition is true, and the results of the others."""
    results: list[Result] = list(records)
    chosen = []
    for index, record in enumerate(records):
        try:
            if when(record):
                chosen.append(index)
        except Defer as error:
            raise CannotDefer("a condition raised Defer", suggestion="let the processor itself raise it") from error
        except Exception as error:  # a border: the condition is the user's
            results[index] = error
    return chosen, results


def _again(batch: Batch, indices: list[int], pristine: list[Record]) -> Batch:
    chosen = batch.select(indices)
    return Batch(batch.span, [pristine[index].copy() for index in indices], chosen.sequences, chosen.pieces)


def _worth_retrying(result: Result) -> bool:
    return isinstance(result, Exception) and not isinstance(result, RecordRefused | Defer)
