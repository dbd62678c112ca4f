"""Writer: the only caller of a destination's `write` and `flush`."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from conduit_py.backoff import delay_after
from conduit_py.batch import Batch, Span
from conduit_py.crash_point import reach
from conduit_py.dead_letter import Failure
from conduit_py.errors import RecordRefused, RunError, TransientError
from conduit_py.inspect.tap_point import Look
from conduit_py.pipeline import Destination
from conduit_py.record import count_records
from conduit_py.sdk.destination import FLUSH_SECONDS, AckMode, refusal_text
from conduit_py.stream.ack_reader import AckReader
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.held_batches import WriteLimit
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, check_refusals
from conduit_py.stream.signal import Pace
from conduit_py.user_errors import as_plugin_error, code_location


class Writer:
    """Writes batches in order and votes on their messages once they are durably handled.

    After the write only the identities of the messages are kept until the vote, not the records. An
    error of the destination is no vote: the write is repeated by the retry policy, then the run ends.
    """

    def __init__(
        self,
        context: NodeContext,
        declared: Destination,
        calls: PluginCaller,
        ack_reader: AckReader | None,
        inbox: "trio.MemoryReceiveChannel[Batch]",
    ) -> None:
        self._context = context
        self._node = context.node
        self._tap_point = context.tap_point
        self._when = declared.when
        self._adapter = adapter = declared.write_adapter
        self._call_write = partial(calls, "write") if adapter is None else adapter.bind(calls)
        self._retry = declared.retry
        # In a transaction, writes become durable when the destination is staged.
        self._staged = context.commit.stages(declared.connector)
        self._flush_acks = declared.connector.acks is AckMode.FLUSH and not self._staged
        # A destination with AckMode.LATER may hold its answers back until `flush`.
        self._flushes = self._flush_acks or (ack_reader is not None and not calls.inherits("flush"))
        self._calls = calls
        self._ack_reader = ack_reader
        self._inbox = inbox
        limits = (declared.rate, declared.batch_size, declared.batch_bytes, declared.batch_seconds)
        self._limit = WriteLimit(declared) if any(limits) else None
        can_wait = declared.when or adapter or ack_reader or self._limit or self._retry.attempts > 1
        self._is_plain = not can_wait
        """True if a write needs nothing but the call and the votes."""
        self._rest = trio.CancelScope()
        """The wait for the next batch. At its deadline everything written may have to be flushed."""
        self._meter = context.meter
        self._errors = PluginErrors(context.node, "write")
        self._look: Look | None = None
        # While a commit waits for a flush, every source waits. Then transactions decide how many records share one.
        at_once = context.commit.awaits_flushes or (adapter is not None and adapter.whole)
        seconds_max = FLUSH_SECONDS if at_once else math.inf
        self._flush_seconds = min(declared.connector.flush_seconds, seconds_max)
        self._pace = Pace(self._flush_seconds)
        self._flush_records = declared.connector.flush_records
        self._unflushed: list[tuple[Span, Sequence[int]]] = []
        self._unflushed_count = 0
        self._look_at = -math.inf
        """When to look whether a flush is due."""
        self._is_idle = False
        """True while the task waits for its inbox and nothing was sent to it. To ask the channel costs some calls."""

    async def run(self) -> None:
        # `with`, not `async with`: a checkpoint here would let a sender fail on the closed channel first,
        # and that error would be kept instead of ours.
        drift = self._calls.plugin.drift_count
        self._meter.drift_counts += [drift] if drift is not None else []
        with self._inbox:
            if self._flush_seconds > FLUSH_SECONDS:
                # A source whose window is full of records that wait for a flush would wait for it too.
                windows = [each.in_flight + each.credit for each in self._context.ledgers.values()]
                self._flush_records = min(self._flush_records, max(1, min(windows) // 2))
            while (batch := await self._next()) is not None:
                # I5: the intents of the transaction before must be carried out before anything is written.
                if self._context.commit.holds_writes:
                    with self._meter.waiting(WaitReason.COMMIT):
                        await self._context.commit.before_write()
                if not self.write_at_once(batch, by_sender=False):
                    await (self._write_under_tap(batch, self._write) if self._tap_point.taps else self._write(batch))
                await self._flush()
            # The inbox has ended: nothing else would write and flush the last batches.
            if self._limit is not None:
                await self._write_in_parts(self._limit, at_end=True)
        if not self._staged:
            await self._flush(at_end=True)
        if self._ack_reader is not None:
            with PluginErrors(self._node, "finish"):
                await self._calls("finish")
            self._ack_reader.finish()

    async def _next(self) -> Batch | None:
        """Return the next batch. Before a long wait for it, write what is held and flush what is written."""
        try:
            while True:
                try:
                    # A batch that is already there is written before the flush, so that one fsync serves both.
                    return self._inbox.receive_nowait()
                except trio.WouldBlock:
                    self._rest = trio.CancelScope(deadline=self._look_at if self._unflushed else math.inf)
                    if self._limit is not None and (due_at := self._limit.due_at) < math.inf:
                        # Not only when it is due: the window may be full before.
                        self._rest.deadline = min(self._rest.deadline, due_at, trio.current_time() + Pace.SECONDS_MAX)
                self._is_idle = True
                try:
                    with self._rest:
                        return await self._inbox.receive()
                finally:
                    self._is_idle = False
                if self._limit is not None:
                    await self._write_in_parts(self._limit)
                await self._flush()
        except trio.EndOfChannel:
            return None

    def write_at_once(self, batch: Batch, *, by_sender: bool = True) -> bool:
        """Write a batch in this task, if nothing can make it wait; return True if it is written.

        With `by_sender` that is the task of its sender. A change of tasks costs more than to write a small batch.
        """
        if (
            not self._is_plain
            or "write" not in self._calls.quick
            or self._tap_point.taps
            or self._context.commit.holds_writes
            # Invariant 1: the writer waits for its inbox, so everything that was sent before is written.
            or (by_sender and not self._is_idle)
        ):
            # The batch goes through the inbox, and so must those behind it until the writer waits again.
            self._is_idle = False
            return False
        try:
            try:
                answer = self._calls.call_here("write", batch.copy(deep=False))
            except RecordRefused as error:
                answer = _refuse_all(batch, error)
        except BaseException as error:  # plugin boundary: the destination is the user's
            self._errors.translate(error)
            raise
        finally:
            self._meter.calls.observe(self._calls.seconds)
        self._end_write(batch, answer, batch.count if batch.span.sizes is None else count_records(batch.records))
        if self._unflushed_count >= self._flush_records:
            # The task of the writer flushes, which takes a thread.
            self._rest.deadline = -math.inf
        elif self._unflushed and self._rest.deadline == math.inf:
            self._rest.deadline = self._look_at
        return True

    async def _write(self, batch: Batch) -> None:
        """Write the messages that match `when`, or hold them until a write is due."""
        if self._when is not None and (self._adapter is None or self._adapter.asks_when(batch)):
            batch = self._matching(batch, self._context.ledgers[batch.span.source])
        if self._limit is None:
            if batch:
                await self._write_with_retries(batch)
            return
        if self._look is not None:
            self._look.on_hold()
            self._look = None
        if batch:
            self._limit.hold(batch)
        await self._write_in_parts(self._limit)

    async def _write_in_parts(self, limit: WriteLimit, *, at_end: bool = False) -> None:
        """Write what is due of the messages that are held, each part as a batch of its own.

        What was written and voted on is not written again with the next part.
        """
        # As in `_flush`: held messages may fill a window, and then nothing else would come.
        at_end = at_end or not all(each.credit for each in self._context.ledgers.values())
        while (part := limit.next_part(everything=at_end)) is not None:
            with self._meter.waiting(WaitReason.WRITE):
                await limit.wait(part)
            write = self._write_with_retries
            await (self._write_under_tap(part, write) if self._tap_point.taps else write(part))
            # A slow limit must not hold back the votes on what is written.
            await self._flush()

    def _end_write(self, batch: Batch, answer: Any, given: int, attempt: int = 1) -> None:
        """Vote on a batch that was written, or note that its messages wait for a flush.

        `answer` is what the last attempt returned, and `given` the number of records that the first one had.
        """
        reach("writer.after_write")
        reasons = check_refusals(self._node, answer, batch.count) if answer else None
        self._meter.count_batch(given)
        if reasons:
            self._meter.records -= len(reasons)
            refused = {index: Failure(self._node, reason, attempt) for index, reason in reasons.items()}
            batch = self._without(batch, refused)
        if self._ack_reader is not None:
            self._ack_reader.end_write()
        if self._look is not None:
            self._look.on_write()
        if self._flushes:
            if batch.count:
                self._unflushed.append((batch.span, batch.sequences))
                self._unflushed_count += batch.count
        elif self._ack_reader is None:
            self._context.ack(batch.span, batch.sequences)

    async def _write_under_tap(self, batch: Batch, write: Callable[[Batch], Awaitable[None]]) -> None:
        self._look = look = self._tap_point.look(batch)
        try:
            await write(batch)
        except RunError as error:
            look.on_failure(error)
            raise
        else:
            look.on_write()
        finally:
            self._look = None

    async def _write_with_retries(self, batch: Batch) -> None:
        """Write a batch, with retries, and vote on it."""
        meter, attempt, answer = self._meter, 1, None
        if self._ack_reader is not None:
            self._ack_reader.expect(batch)
        given = batch.count if batch.span.sizes is None else count_records(batch.records)
        # Invariant 1: the next batch waits until this one is done, so a retry repeats and never reorders.
        while batch:
            try:
                with self._errors, meter.waiting(WaitReason.WRITE, timing=meter.calls):
                    try:
                        answer = await self._call_write(batch.copy(deep=False))
                    except RecordRefused as error:
                        answer = _refuse_all(batch, error)
                break
            except TransientError as error:
                if attempt == self._retry.attempts:
                    raise
                meter.retries += 1
                with meter.waiting(WaitReason.BACK_OFF, error.message):
                    await trio.sleep(delay_after(error, self._retry.delay(attempt, self._context.rng)))
                attempt += 1
                if self._ack_reader is not None:
                    # Messages acked during the failed write must not be written again.
                    batch = self._ack_reader.still_open(batch)
        # Not inside of the try: an error of a vote must not repeat what is written.
        self._end_write(batch, answer, given, attempt)

    def _matching(self, batch: Batch, ledger: Ledger) -> Batch:
        """Return the messages that match `when`; for this destination the others are filtered."""
        assert self._when is not None
        here: list[int] = []
        elsewhere: list[int] = []
        failed: dict[int, Failure] = {}
        for index, record in enumerate(batch.records):
            try:
                (here if self._when(record) else elsewhere).append(index)
            except BaseException as error:  # plugin boundary: the condition is the user's
                failed[index] = Failure(self._node, refusal_text(as_plugin_error(error)), location=code_location(error))
        self._refuse(batch, failed)
        if elsewhere:
            self._meter.filtered += len(elsewhere)
            if self._look is not None:
                self._look.on_filter(batch, elsewhere)
            sequences = [batch.sequences[index] for index in elsewhere]
            ledger.ack(batch.span, sequences, self._context.voters, unwanted=True)
        return batch.select(here)

    def _without(self, batch: Batch, refused: Mapping[int, Failure]) -> Batch:
        if self._ack_reader is not None:
            self._ack_reader.forget(batch, refused)
        self._refuse(batch, refused)
        return batch.select([index for index in range(len(batch)) if index not in refused])

    def _refuse(self, batch: Batch, refused: Mapping[int, Failure]) -> None:
        for index, failure in refused.items():
            if self._look is not None:
                self._look.on_refusal(batch, index, failure.error)
            self._context.nack(batch, index, batch.record(index), failure)

    async def _flush(self, *, at_end: bool = False) -> None:
        """Make everything written durable, if that is due, then vote on it."""
        if not at_end and self._unflushed_count < self._flush_records:
            now = trio.current_time()
            if not self._unflushed or now < self._look_at:
                return
            # One record that waits for a flush may hold back a window of records that were filtered or went elsewhere.
            if now < self._pace.due_at and all(each.credit for each in self._context.ledgers.values()):
                self._look_at = min(self._pace.due_at, now + Pace.SECONDS_MAX)
                return
        started = trio.current_time()
        waiting = self._meter.waiting(WaitReason.FLUSH, timing=self._meter.persists)
        with PluginErrors(self._node, "flush"), waiting:
            await self._calls("flush")
        self._pace.end_step(started)
        self._look_at = min(self._pace.due_at, trio.current_time() + Pace.SECONDS_MAX)
        reach("writer.after_flush")
        unflushed, self._unflushed, self._unflushed_count = self._unflushed, [], 0
        if not self._flush_acks:
            return
        # Invariant 2: votes on what was written come after the flush that made it durable.
        for span, sequences in unflushed:
            self._context.ack(span, sequences)


def _refuse_all(batch: Batch, error: RecordRefused) -> dict[int, str]:
    return dict.fromkeys(range(len(batch)), refusal_text(error))
