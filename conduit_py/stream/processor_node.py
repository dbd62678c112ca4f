"""ProcessorNode: applies a processor to batches, then filters, splits or refuses their messages."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import compress, groupby, islice
from operator import is_not
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import trio

from conduit_py.batch import Batch, NamedPieces, Piece
from conduit_py.dead_letter import Failure, RefusedWithLetter
from conduit_py.errors import CannotDefer, ContractBroken, RunError
from conduit_py.graph.compile import DestinationCondition
from conduit_py.inspect.tap_point import TapPoint
from conduit_py.payloads import LazyColumn, copy_value, is_payload, kind_of
from conduit_py.pipeline import Processor
from conduit_py.record import RECORD_TYPES, Record
from conduit_py.sdk.destination import refusal_text
from conduit_py.sdk.state import Defer, State
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.held_batches import join_batches
from conduit_py.stream.meter import WaitReason
from conduit_py.stream.processor_calls import GivenUp, Results, SameResults, TableChange, finish
from conduit_py.stream.worker import WorkerPool
from conduit_py.user_errors import code_location

log = logging.getLogger("conduit_py")


class ProcessorNode:
    """Applies a processor to batches in order and casts the votes of every message that ends here.

    The processor may be replaced during a run. `begin` adds a generation for messages from given sequences on.
    Earlier generations process earlier messages until they are retired.
    """

    def __init__(self, context: NodeContext, declared: Processor, state: State | None = None) -> None:
        self._context = context
        self.state = state
        self._generations = [_Generation({}, self.new_pool(declared))]
        self._usual_kind: type | None = None
        """The type of payloads that left it last: whether it is one need not be asked again."""
        self.turn: trio.Lock | None = None
        """Held while a batch is processed; None unless replayed dead letters may arrive from another task."""

    @property
    def decodes_into(self) -> type[msgspec.Struct] | None:
        """The type of payload that it takes as a source may decode it; None if it needs records or conversions."""
        return self._generations[0].pool.decodes_into

    def new_pool(self, declared: Processor) -> WorkerPool:
        """Make workers for this node, not yet opened."""
        self._declared, self.in_processes = declared, declared.where == "process"
        self._is_condition = isinstance(declared.processor, DestinationCondition)
        return WorkerPool(self._context.node, declared, self._context.meter, self._context.rng, self.state)

    async def open(self) -> None:
        for generation in self._generations:
            await generation.pool.open()

    async def close(self) -> None:
        """Close every pool that was opened; raise the first error."""
        await close_all([generation.pool for generation in self._generations])

    def replace(self, declared: Processor) -> None:
        """Use another definition from the start. Call this only before `open`."""
        self._generations = [_Generation({}, self.new_pool(declared))]

    def begin(self, pool: WorkerPool, since: Mapping[str, int]) -> None:
        """Use an opened pool for the messages of each source from these sequences on."""
        self._generations.append(_Generation(since, pool))

    def retire(self, successor: WorkerPool) -> list[WorkerPool]:
        """Remove and return the pools before this one, which must be idle. The caller closes them."""
        start = next((index for index, each in enumerate(self._generations) if each.pool is successor), 0)
        retired, self._generations = self._generations[:start], self._generations[start:]
        return [generation.pool for generation in retired]

    def _pool_for(self, batch: Batch) -> "WorkerPool | _TappedPool":
        pool = self._generations[0].pool if len(self._generations) == 1 else self._generation_of(batch).pool
        return _TappedPool(pool, self._context.tap_point) if self._context.tap_point.taps else pool

    def _generation_of(self, batch: Batch) -> "_Generation":
        # The newest first. A span belongs to one generation: a swap comes between two registrations.
        for generation in reversed(self._generations):
            if batch.span.first >= generation.since.get(batch.span.source, 0):
                return generation
        raise AssertionError(f"{self._context.node}: no generation has message {batch.span.first} of {batch.source}")

    def apply(self, batch: Batch) -> Batch | Awaitable[Batch]:
        """Process a batch; return the batch that leaves this node, in which every message keeps its identity.

        A processor that is quick is done when this returns. For any other, the result must be awaited at once.
        """
        # A processor is never called twice at once, also when a dead letter arrives from another task.
        if self.turn is not None and self.turn.locked():
            return self._apply_in_turn(self.turn, batch)
        alone = len(self._generations) == 1 and not self._context.tap_point.taps
        results = (self._generations[0].pool if alone else self._pool_for(batch)).results(batch)
        if isinstance(results, (SameResults, list)):
            return self._outcome(batch, results)
        return self._apply_later(batch, results)

    async def _apply_in_turn(self, turn: trio.Lock, batch: Batch) -> Batch:
        async with turn:
            with self._context.meter.waiting(WaitReason.PROCESSOR):
                results = await finish(self._pool_for(batch).results(batch))
            return self._outcome(batch, results)

    async def _apply_later(self, batch: Batch, pending: Awaitable[Results]) -> Batch:
        if self.turn is not None:
            self.turn.acquire_nowait()
        try:
            with self._context.meter.waiting(WaitReason.PROCESSOR):
                results = await pending
            return self._outcome(batch, results)
        finally:
            if self.turn is not None:
                self.turn.release()

    async def apply_together(self, batches: Sequence[Batch]) -> list[Batch]:
        """Process batches of one source as one; return for each of them the batch that leaves this node."""
        left: list[Batch] = []
        for pool, group in groupby(batches, self._pool_for):
            # Their records are asked for first: a part of the results must mean what all of them mean.
            together = [batch for batch in group if batch.records]
            with self._context.meter.waiting(WaitReason.PROCESSOR):
                rest = iter(await finish(pool.results(join_batches(together))))
            left += [self._outcome(batch, list(islice(rest, len(batch)))) for batch in together]
        return left

    async def apply_in_part(self, batch: Batch) -> tuple[Batch, Batch]:
        """Process a batch up to the first deferred record; return what leaves this node, and the rest unchanged."""
        with self._context.meter.waiting(WaitReason.PROCESSOR):
            results = await finish(self._pool_for(batch).results(batch))
        first = next((index for index, result in enumerate(results) if isinstance(result, Defer)), len(results))
        if 0 < first < len(results) and batch.sequences[first - 1] == batch.sequences[first]:
            raise self._cannot_defer(
                "it deferred a later piece of a split record: all pieces of a record are in one transaction",
                "place it before the processor that splits, or defer the first piece of a record",
            )
        rest = batch.select(range(first, len(batch)))
        for index, result in enumerate(results[first:]):
            if isinstance(result, Defer) and result.record is not None:
                rest.records[index] = result.record
        passed = batch.select(range(first)) if rest else batch
        return (self._outcome(passed, results[:first]) if first else passed), rest

    def _outcome(self, batch: Batch, results: Results) -> Batch:
        """Cast the votes of the messages that end here; return the batch that leaves this node."""
        self._context.meter.count_batch(batch.count)
        if isinstance(results, SameResults):
            # Fast path: mostly every result is the record or payload itself, or None.
            if results.gone is not None and (batch.holds_records or batch.kind is not None):
                return self._filter_out(batch, results.values, batch.kind, results.gone) if results.gone else batch
            results = results.listed()
        # Else the types of all are looked at.
        kinds = set(map(type, results))
        has_filtered = NoneType in kinds
        kinds.discard(NoneType)
        kind = kind_of(kinds)
        if kind is TableChange:
            return results[0].apply(batch, self)  # type: ignore[no-any-return]
        # Exact types: anything else, such as a subclass of Record, is looked at one by one.
        if kind is None or batch.holds_records or (kind is not batch.kind and kind is not self._usual_kind):
            if not all(map(self.value_test(batch), kinds)):
                return _Routing(self, batch, results).outcome()
            self._usual_kind = None if batch.holds_records else kind
        if batch.holds_records and any(map(is_not, filter(None, results), compress(batch.records, results))):
            for record, original in zip(filter(None, results), compress(batch.records, results), strict=True):
                record.position = record.position or original.position
        if has_filtered:
            gone = [index for index, result in enumerate(results) if result is None]
            return self._filter_out(batch, results, kind, gone)
        return batch.with_values(results, kind)

    def value_test(self, batch: Batch) -> Callable[[type], bool]:
        """Return the test for the types of values that may leave this node in place of those of a batch."""
        return RECORD_TYPES.__contains__ if batch.holds_records else is_payload

    def _filter_out(self, batch: Batch, values: list[Any], kind: type | None, gone: list[int]) -> Batch:
        """Return the batch of these values, without those at the indices `gone`."""
        self.filter(batch, LazyColumn(gone, batch.sequences.__getitem__))  # Mostly only their count is wanted.
        stays = bytearray(b"\1") * len(values)
        for index in gone:
            stays[index] = 0
        return batch.without(gone, list(compress(values, stays)), kind)

    def filter(self, batch: Batch, sequences: Sequence[int]) -> None:
        self._context.meter.filtered += len(sequences)
        # Invariant 4: filtered is acked. Invariant 5: for every destination behind this node.
        ledger, unwanted = self._context.ledgers[batch.span.source], self._is_condition
        ledger.ack(batch.span, sequences, self._context.voters, unwanted=unwanted)

    def split(self, batch: Batch, sequence: int, extra: int) -> None:
        # Invariant 5: before any piece is sent. Else the first votes could settle the record without the others.
        self._context.ledgers[batch.span.source].split(batch.span, sequence, extra, self._context.voters)

    def refuse(self, batch: Batch, index: int, given_up: GivenUp) -> None:
        context, error = self._context, given_up.error
        log.debug("%s refuses a record", context.node, exc_info=error)
        if isinstance(error, RefusedWithLetter):
            context.meter.refused += 1
            context.ledgers[batch.span.source].nack(batch.span, error.letter, context.voters)
        else:
            failure = Failure(context.node, refusal_text(error), given_up.attempts, code_location(error))
            context.nack(batch, index, given_up.record, failure)

    def undeclared_deferral(self) -> CannotDefer:
        return self._cannot_defer(
            "it raised Defer, but does not declare defers=True",
            'write @processor(state=True, defers=True), in a pipeline with delivery="exactly_once"',
        )

    def _cannot_defer(self, why: str, suggestion: str) -> CannotDefer:
        error = CannotDefer(f"{self._context.node} cannot defer: {why}", suggestion=suggestion)
        error.node = self._context.node
        return error

    def wrong_result(self, result: object, *, in_records: bool) -> ContractBroken:
        what = "a Record, None or a list of Records" if in_records else "a payload, None or a list of payloads"
        rule = f"returned {type(result).__name__}: return {what}, or raise"
        error = ContractBroken(self._context.node, rule)
        error.suggestion = _code_advice(self._declared)
        return error


async def close_all(pools: Sequence[WorkerPool]) -> None:
    """Close every opened worker of these pools concurrently, so that none delays the others; raise the first error."""
    errors: list[RunError] = []
    async with trio.open_nursery() as nursery:
        for pool in pools:
            # Taken out first: a hot swap and the end of the run may both close a pool, but a worker only once.
            opened, pool.opened = pool.opened, []
            for worker in opened:
                nursery.start_soon(worker.close, errors)
    if errors:
        raise errors[0]


def _code_advice(declared: Processor) -> str | None:
    """Return where the code of a processor is, as advice; None if it is not written in Python."""
    plugin = declared.processor
    assert plugin is not None
    method = plugin.process_table if plugin.by_table else plugin.process_batch if plugin.by_batch else plugin.process
    code = getattr(method, "__code__", None)
    return f"see {code.co_name} at {code.co_filename}:{code.co_firstlineno}" if code is not None else None


class _TappedPool(NamedTuple):
    """A pool that reports its batches to taps."""

    pool: WorkerPool
    point: TapPoint

    async def results(self, batch: Batch) -> Results:
        # Asked for first: a sample shows records, so the results must be records too.
        _ = batch.records
        look = self.point.look(batch)
        try:
            results = await finish(self.pool.results(batch))
        except RunError as error:
            look.on_failure(error)
            raise
        look.on_results([result.error if isinstance(result, GivenUp) else result for result in results])
        return results


class _Generation(NamedTuple):
    """A pool, and by source the first sequence that it processes; 0 for sources not in the mapping."""

    since: Mapping[str, int]
    pool: WorkerPool


class _Routing:
    """Routes the results of one batch: each is kept, filtered, split or refused."""

    def __init__(self, node: ProcessorNode, batch: Batch, results: list[Any]) -> None:
        self._node = node
        self._batch = batch
        self._results = results
        self._is_value = node.value_test(batch)
        self._values: list[Any] = []
        self._indices: list[int] = []
        self._pieces: list[Piece] | None = None if batch.pieces is None else []

    def outcome(self) -> Batch:
        # Before the first vote: an error that ends the run must not settle some messages of its batch.
        for result in self._results:
            error = result.error if isinstance(result, GivenUp) else result
            if isinstance(error, RunError):
                raise error
            if isinstance(result, Defer):
                raise self._node.undeclared_deferral()
        filtered: list[int] = []
        sequences = self._batch.sequences
        for index, result in enumerate(self._results):
            if self._is_value(type(result)):
                self._keep(index, result)
            elif result is None:
                filtered.append(sequences[index])
            elif isinstance(result, GivenUp):
                self._node.refuse(self._batch, index, result)
            elif isinstance(result, Exception):
                self._node.refuse(self._batch, index, GivenUp(result, 1, self._batch.record(index)))
            elif isinstance(result, list):
                self._split(index, result, filtered)
            else:
                raise self._node.wrong_result(result, in_records=self._batch.holds_records)
        if filtered:
            self._node.filter(self._batch, filtered)
        return self._batch.split(self._values, self._indices, self._pieces)

    def _keep(self, index: int, value: Any) -> None:
        # A processor may return a new record without a position, but destinations rely on the position.
        if isinstance(value, Record) and not value.position:
            value.position = self._batch.records[index].position
        self._values.append(value)
        self._indices.append(index)
        if self._pieces is not None:
            self._pieces.append(self._batch.piece(index))

    def _split(self, index: int, pieces: list[Any], filtered: list[int]) -> None:
        for piece in pieces:
            if not self._is_value(type(piece)):
                raise self._node.wrong_result(piece, in_records=self._batch.holds_records)
        sequence = self._batch.sequences[index]
        if not pieces:
            filtered.append(sequence)
            return
        names = pieces.names if isinstance(pieces, NamedPieces) else None
        if len(pieces) == 1 and names is None:
            self._keep(index, pieces[0])
            return
        if len(pieces) > 1:
            self._node.split(self._batch, sequence, len(pieces) - 1)
        if self._pieces is None:
            # The records before this one are whole.
            self._pieces = [()] * len(self._values)
        parent = self._batch.piece(index)
        seen: set[int] = set()
        for number, piece in enumerate(pieces):
            # A list may hold one record several times. Each piece needs its own, or later changes would mix.
            self._keep(index, copy_value(piece) if id(piece) in seen else piece)
            self._pieces[-1] = (*parent, number) if names is None else names[number]
            seen.add(id(piece))
