"""ProcessorNode: one processor node; what a record becomes, and what that means for its message."""

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress
from operator import is_not, not_
from typing import NamedTuple

import trio

from conduit_py.batch import Batch, Piece
from conduit_py.bundle import RECORDS
from conduit_py.dead_letter import DeadLetter, Failure, RefusedElsewhere
from conduit_py.errors import CannotDefer, ContractBroken, RunError
from conduit_py.inspect.tap import TapPoint
from conduit_py.pieces import Pieces
from conduit_py.pipeline import Processor
from conduit_py.record import Record
from conduit_py.sdk.defer import Defer
from conduit_py.sdk.destination import refusal_text
from conduit_py.sdk.processor import Result
from conduit_py.sdk.state import State
from conduit_py.stream.deferral import Deferral
from conduit_py.stream.fan_out import FanOut
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter
from conduit_py.stream.worker_pool import GivenUp, WorkerPool, close_all

log = logging.getLogger("conduit_py")


async def run_chain(stages: list["ProcessorNode"], batch: Batch, outlet: FanOut) -> None:
    """Take a batch through processors, then send what is left of it on."""
    for stage in stages:
        if not batch.records:
            return
        batch = await stage.apply(batch)
    if batch.records:
        await outlet.send(batch)


async def run_deferring(
    inbox: trio.MemoryReceiveChannel[Batch], stages: list["ProcessorNode"], outlet: FanOut, deferral: Deferral
) -> None:
    """As `run_processors`, if the first of them may defer: what comes before the deferred record goes on at once."""
    first, *others = stages
    with inbox, outlet, suppress(trio.EndOfChannel):
        while True:
            batch = await deferral.receive(inbox)
            while batch.records:
                passed, batch = await first.apply_in_part(batch)
                await run_chain(others, passed, outlet)
                if batch.records:
                    batch = await deferral.next_transaction(batch, inbox)


async def run_processors(
    inbox: trio.MemoryReceiveChannel[Batch], stages: list["ProcessorNode"], outlet: FanOut
) -> None:
    """A run of adjacent processors as one task: a channel between them would only cost time."""
    with inbox, outlet:
        async for batch in inbox:
            await run_chain(stages, batch, outlet)


class ProcessorNode:
    """Applies a processor to batches in order and tells the ledger about every message that ends here.

    The processor may be exchanged while batches come: `begin` says from which messages on another crew
    works, and the crews before it go on with earlier ones until they are retired.
    """

    def __init__(
        self,
        node: str,
        declared: Processor,
        voters: int,
        ledgers: Mapping[str, Ledger],
        meter: Meter,
        rng: random.Random,
        point: TapPoint,
        state: State | None = None,
    ) -> None:
        self._node = node
        self._voters = voters
        self._ledgers = ledgers
        self._meter = meter
        self._rng = rng
        self._point = point
        self._state = state
        self._shifts = [_Generation({}, self.crew(declared))]
        self.turn: trio.Lock | None = None
        """Held while a batch is worked on; only where dead letters may come in beside the batches of the task."""

    def crew(self, declared: Processor) -> WorkerPool:
        """Workers for this node, not yet opened."""
        return WorkerPool(self._node, declared, self._meter, self._rng, self._state)

    async def open(self) -> None:
        for shift in self._shifts:
            await shift.crew.open()

    async def close(self) -> None:
        """Close every crew that was opened; raise the first error."""
        await close_all([shift.crew for shift in self._shifts])

    def replace(self, declared: Processor) -> None:
        """Work by another definition from the start; only before `open`."""
        self._shifts = [_Generation({}, self.crew(declared))]

    def begin(self, crew: WorkerPool, since: Mapping[str, int]) -> None:
        """Have an opened crew work on the messages of each source that have these sequences, and later ones."""
        self._shifts.append(_Generation(since, crew))

    def retire(self, successor: WorkerPool) -> list[WorkerPool]:
        """Let go of the crews before this one, which must have nothing left to do; they are the caller's to close."""
        start = next((index for index, shift in enumerate(self._shifts) if shift.crew is successor), 0)
        retired, self._shifts = self._shifts[:start], self._shifts[start:]
        return [shift.crew for shift in retired]

    def _crew_for(self, batch: Batch) -> WorkerPool:
        for shift in reversed(self._shifts):
            if batch.span.first >= shift.since.get(batch.span.source, 0):
                return shift.crew
        raise AssertionError(f"{self._node}: nobody works on message {batch.span.first} of {batch.source}")

    async def apply(self, batch: Batch) -> Batch:
        """The batch that leaves this node: every message in it keeps its identity."""
        if self.turn is None:
            return await self._apply(batch)
        try:
            # Without a checkpoint, which would cost more than many a batch.
            self.turn.acquire_nowait()
        except trio.WouldBlock:
            await self.turn.acquire()
        try:
            return await self._apply(batch)
        finally:
            self.turn.release()

    async def apply_in_part(self, batch: Batch) -> tuple[Batch, Batch]:
        """What leaves this node up to the first record that it defers, and the rest, as it came."""
        results, given_up = await self._results(batch)
        first = next((index for index, result in enumerate(results) if isinstance(result, Defer)), len(results))
        if 0 < first < len(results) and batch.sequences[first - 1] == batch.sequences[first]:
            raise self._cannot_defer(
                "it deferred a piece of a record of which it had processed another: a record is in one transaction",
                "let it come before the processor that splits, or defer the first piece of a record",
            )
        rest = batch.select(range(first, len(batch)))
        for index, result in enumerate(results[first:]):
            if isinstance(result, Defer) and result.record is not None:
                rest.records[index] = result.record
        passed = batch.select(range(first)) if rest.records else batch
        return (self._outcome(passed, results[:first], given_up) if first else passed), rest

    async def _apply(self, batch: Batch) -> Batch:
        return self._outcome(batch, *await self._results(batch))

    async def _results(self, batch: Batch) -> tuple[list[Result], dict[int, GivenUp]]:
        crew = self._shifts[0].crew if len(self._shifts) == 1 else self._crew_for(batch)
        with self._meter.waiting("processor"):
            return await (self._seen(crew, batch) if self._point.taps else crew.results(batch))

    def _outcome(self, batch: Batch, results: list[Result], given_up: Mapping[int, GivenUp]) -> Batch:
        """What leaves this node if these are the results for the batch; what ends here is told to the ledger."""
        self._meter.records += len(batch)
        self._meter.batches += 1
        self._meter.batch_sizes.observe(len(batch))
        # Most batches come out as they went in; then there is nothing to tell anybody.
        if not any(map(is_not, results, batch.records)):
            return batch
        if set(map(type, results)) <= _KEPT_OR_FILTERED:
            return self._filtered(batch, results)  # type: ignore[arg-type]
        return _Sorting(self, batch, results, given_up).outcome()

    async def _seen(self, crew: WorkerPool, batch: Batch) -> tuple[list[Result], dict[int, GivenUp]]:
        look = self._point.look(batch)
        try:
            results, given_up = await crew.results(batch)
        except RunError as error:
            look.failed(error)
            raise
        look.results(results)
        return results, given_up

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

    def filter(self, batch: Batch, sequences: list[int]) -> None:
        self._meter.filtered += len(sequences)
        self._ledgers[batch.span.source].ack_some(batch.span, sequences, self._voters)

    def split(self, batch: Batch, sequence: int, extra: int) -> None:
        self._ledgers[batch.span.source].split(batch.span, sequence, extra, self._voters)

    def refuse(self, batch: Batch, index: int, error: Exception, given_up: GivenUp) -> None:
        self._meter.refused += 1
        log.debug("%s refuses a record", self._node, exc_info=error)
        if isinstance(error, RefusedElsewhere):
            letter = DeadLetter.reported(batch, index, error)
        else:
            failure = Failure(self._node, refusal_text(error), given_up.attempts)
            letter = DeadLetter.about(batch, index, given_up.record, failure)
        self._ledgers[batch.span.source].nack(batch.span, letter, self._voters)

    def undeclared_deferral(self) -> CannotDefer:
        return self._cannot_defer(
            "it raised Defer, but is not declared to",
            'write @processor(state=True, defers=True), in a pipeline with delivery="exactly_once"',
        )

    def _cannot_defer(self, why: str, suggestion: str) -> CannotDefer:
        error = CannotDefer(f"{self._node} cannot defer: {why}", suggestion=suggestion)
        error.node = self._node
        return error

    def wrong_result(self, result: object) -> ContractBroken:
        kind = type(result).__name__
        return ContractBroken(self._node, f"returned {kind}: return a Record, None or a list of Records, or raise")


_KEPT_OR_FILTERED = {Record, type(None)}


class _Generation(NamedTuple):
    """A crew, and by source the first message it works on; none is given for those it works on from the start."""

    since: Mapping[str, int]
    crew: WorkerPool


class _Sorting:
    """Sorts the results for one batch into what goes on and what ends here."""

    def __init__(
        self, stage: ProcessorNode, batch: Batch, results: list[Result], given_up: Mapping[int, GivenUp]
    ) -> None:
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
            if isinstance(result, Defer):
                raise self._stage.undeclared_deferral()
        filtered: list[int] = []
        sequences = self._batch.sequences
        for index, result in enumerate(self._results):
            if isinstance(result, Record) and type(result) in RECORDS:
                self._keep(index, result)
            elif result is None:
                filtered.append(sequences[index])
            elif isinstance(result, Exception):
                once = GivenUp(1, self._batch.records[index])
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
        if not RECORDS.issuperset(map(type, pieces)):
            raise self._stage.wrong_result(next(piece for piece in pieces if type(piece) not in RECORDS))
        sequence = self._batch.sequences[index]
        if not pieces:
            filtered.append(sequence)
            return
        names = pieces.names if isinstance(pieces, Pieces) else None
        if len(pieces) == 1 and names is None:
            self._keep(index, pieces[0])
            return
        if len(pieces) > 1:
            self._stage.split(self._batch, sequence, len(pieces) - 1)
        if self._pieces is None:
            self._pieces = [()] * len(self._records)
        parent = self._batch.piece(index)
        seen: set[int] = set()
        for number, piece in enumerate(pieces):
            self._keep(index, piece.copy() if id(piece) in seen else piece)
            self._pieces[-1] = (*parent, number) if names is None else names[number]
            seen.add(id(piece))
