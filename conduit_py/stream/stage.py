"""Stage: one processor node; what a record becomes, and what that means for its message."""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import is_not, not_
from typing import NamedTuple

import trio

from conduit_py.batch import Batch, Piece
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import ContractBroken, RecordRefused, RunError
from conduit_py.pipeline import Processor
from conduit_py.record import Record
from conduit_py.sdk.destination import refusal_text
from conduit_py.sdk.processor import Result
from conduit_py.stream.lane import Lane
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter
from conduit_py.stream.outlet import Outlet

log = logging.getLogger("conduit_py")


async def run_stages(stages: list["Stage"], batch: Batch, outlet: Outlet) -> None:
    """Take a batch through processors, then send what is left of it on."""
    for stage in stages:
        if not batch.records:
            return
        batch = await stage.apply(batch)
    if batch.records:
        await outlet.send(batch)


async def run_processors(inbox: trio.MemoryReceiveChannel[Batch], stages: list["Stage"], outlet: Outlet) -> None:
    """A run of adjacent processors as one task: a channel between them would only cost time."""
    with inbox, outlet:
        async for batch in inbox:
            await run_stages(stages, batch, outlet)


class Stage:
    """Applies a processor to batches in order and tells the ledger about every message that ends here.

    With several workers a batch is cut into as many pieces, which are put together again in order
    (invariant 1).
    """

    def __init__(
        self,
        node: str,
        declared: Processor,
        voters: int,
        ledgers: Mapping[str, Ledger],
        meter: Meter,
        rng: random.Random,
    ) -> None:
        assert declared.processor is not None
        self._node = node
        self._when = declared.when
        self._retry = declared.retry
        self._voters = voters
        self._ledgers = ledgers
        self._meter = meter
        self._rng = rng
        several = declared.workers > 1
        self._lanes = [
            Lane(node, declared.processor.fresh(), always_in_thread=several) for _ in range(declared.workers)
        ]
        self._opened: list[Lane] = []

    async def open(self) -> None:
        for lane in self._lanes:
            self._opened.append(lane)
            await lane.open()

    async def close(self) -> None:
        """Close every worker that was opened, at once, so that none is held up by the others; raise the first error."""
        errors: list[RunError] = []

        async def close(lane: Lane) -> None:
            try:
                await lane.close()
            except RunError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for lane in self._opened:
                nursery.start_soon(close, lane)
        if errors:
            raise errors[0]

    async def apply(self, batch: Batch) -> Batch:
        """The batch that leaves this node: every message in it keeps its identity."""
        with self._meter.waiting("processor"):
            results, given_up = await self._results(batch)
        self._meter.records += len(batch)
        self._meter.batches += 1
        self._meter.batch_sizes.observe(len(batch))
        # Most batches come out as they went in; then there is nothing to tell anybody.
        if not any(map(is_not, results, batch.records)):
            return batch
        if set(map(type, results)) <= _KEPT_OR_FILTERED:
            return self._filtered(batch, results)  # type: ignore[arg-type]
        return _Sorting(self, batch, results, given_up).outcome()

    def _filtered(self, batch: Batch, results: Sequence[Record | None]) -> Batch:
        """The common case of a filter, without a step of Python for every record: records are true, None is not."""
        records = list(filter(None, results))
        if any(map(is_not, records, compress(batch.records, results))):
            for record, original in zip(records, compress(batch.records, results), strict=True):
                record.position = record.position or original.position
        pieces = None if batch.pieces is None else list(compress(batch.pieces, results))
        if len(records) == len(results):
            return Batch(batch.span, records, batch.sequences, pieces)
        self.filter(batch, list(compress(batch.sequences, map(not_, results))))
        return Batch(batch.span, records, list(compress(batch.sequences, results)), pieces)

    async def _results(self, batch: Batch) -> tuple[list[Result], dict[int, "_GivenUp"]]:
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

    async def _tried(self, batch: Batch) -> tuple[list[Result], dict[int, "_GivenUp"]]:
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
        return results, {index: _GivenUp(attempts[index], pristine[index]) for index in errors}

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

    def filter(self, batch: Batch, sequences: list[int]) -> None:
        self._meter.filtered += len(sequences)
        self._ledgers[batch.source].ack_some(batch.span, sequences, self._voters)

    def split(self, batch: Batch, sequence: int, extra: int) -> None:
        self._ledgers[batch.source].split(batch.span, sequence, extra, self._voters)

    def refuse(self, batch: Batch, index: int, error: Exception, given_up: "_GivenUp") -> None:
        self._meter.refused += 1
        log.debug("%s refuses a record", self._node, exc_info=error)
        failure = Failure(self._node, refusal_text(error), given_up.attempts)
        letter = DeadLetter.about(batch, index, given_up.record, failure)
        self._ledgers[batch.source].nack(batch.span, letter, self._voters)

    def wrong_result(self, result: object) -> ContractBroken:
        kind = type(result).__name__
        return ContractBroken(self._node, f"returned {kind}: return a Record, None or a list of Records, or raise")


_KEPT_OR_FILTERED = {Record, type(None)}


class _GivenUp(NamedTuple):
    """How often a record was tried in vain, and the record as it came to this node."""

    attempts: int
    record: Record


class _Sorting:
    """Sorts the results for one batch into what goes on and what ends here."""

    def __init__(self, stage: Stage, batch: Batch, results: list[Result], given_up: Mapping[int, _GivenUp]) -> None:
        self._stage = stage
        self._batch = batch
        self._results = results
        self._given_up = given_up
        self._records: list[Record] = []
        self._sequences: list[int] = []
        self._pieces: list[Piece] | None = None if batch.pieces is None else []

    def outcome(self) -> Batch:
        # A transient error is no answer about a record: it ends the run before anything is said about the others.
        for result in self._results:
            if isinstance(result, RunError):
                raise result
        filtered: list[int] = []
        sequences = self._batch.sequences
        for index, result in enumerate(self._results):
            if type(result) is Record:
                self._keep(index, result)
            elif result is None:
                filtered.append(sequences[index])
            elif isinstance(result, Exception):
                once = _GivenUp(1, self._batch.records[index])
                self._stage.refuse(self._batch, index, result, self._given_up.get(index, once))
            elif isinstance(result, list):
                self._split(index, result, filtered)
            else:
                raise self._stage.wrong_result(result)
        if filtered:
            self._stage.filter(self._batch, filtered)
        return Batch(self._batch.span, self._records, self._sequences, self._pieces)

    def _keep(self, index: int, record: Record) -> None:
        # A record made anew need not know its position, but destinations may rely on it.
        if not record.position:
            record.position = self._batch.records[index].position
        self._records.append(record)
        self._sequences.append(self._batch.sequences[index])
        if self._pieces is not None:
            self._pieces.append(self._batch.piece(index))

    def _split(self, index: int, pieces: list[Record], filtered: list[int]) -> None:
        if not all(type(piece) is Record for piece in pieces):
            raise self._stage.wrong_result(next(piece for piece in pieces if type(piece) is not Record))
        sequence = self._batch.sequences[index]
        if not pieces:
            filtered.append(sequence)
            return
        if len(pieces) == 1:
            self._keep(index, pieces[0])
            return
        self._stage.split(self._batch, sequence, len(pieces) - 1)
        if self._pieces is None:
            self._pieces = [()] * len(self._records)
        parent = self._batch.piece(index)
        seen: set[int] = set()
        for number, piece in enumerate(pieces):
            self._keep(index, piece.copy() if id(piece) in seen else piece)
            self._pieces[-1] = (*parent, number)
            seen.add(id(piece))


def _chosen(when: Callable[[Record], bool], records: list[Record]) -> tuple[list[int], list[Result]]:
    """The indices for which the condition is true, and the results of the others."""
    results: list[Result] = list(records)
    chosen = []
    for index, record in enumerate(records):
        try:
            if when(record):
                chosen.append(index)
        except Exception as error:  # a border: the condition is the user's
            results[index] = error
    return chosen, results


def _again(batch: Batch, indices: list[int], pristine: list[Record]) -> Batch:
    chosen = batch.select(indices)
    return Batch(batch.span, [pristine[index].copy() for index in indices], chosen.sequences, chosen.pieces)


def _worth_retrying(result: Result) -> bool:
    return isinstance(result, Exception) and not isinstance(result, RecordRefused)
