"""Settler: makes the progress of a source durable, and is the only caller of its `ack`."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from conduit_py.crash_point import reach
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import NackNotAllowed, RunError
from conduit_py.positions import MINUTE, HistoryPoint, PositionHistory, join_positions
from conduit_py.store.store import Store
from conduit_py.stream.commit import NodeContext
from conduit_py.stream.dead_letters import DeadLetterHandler, LettersNotStored
from conduit_py.stream.ledger import Ledger, SettledRange
from conduit_py.stream.meter import WaitReason
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors
from conduit_py.stream.signal import PROGRESS_SECONDS, Pace, Signal
from conduit_py.stream.source_calls import ShardTracker

SETTLE_SECONDS = 0.002

FIRST_RECORDS = 100
FIRST_NACKS_MAX = 95
"""Without a window of its own, a pipeline stops when more than 95 of a source's first 100 records are refused."""


class Settler:
    """Settles the messages of one source in order: stores dead letters, saves the position, then acks.

    Invariant 2: a position is acked only after every message up to it is handled and the position is
    durable. Invariant 3: acks are in order and once each, and stop before a message whose nack could
    not be handled. Credit returns to the reader last, so the window bounds what a crash repeats.
    """

    def __init__(
        self,
        context: NodeContext,
        pipeline: str,
        ledger: Ledger,
        nack_window: "NackWindow",
        dead_letters: DeadLetterHandler,
        store: Store,
        calls: PluginCaller,
        shard_tracker: ShardTracker | None = None,
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._ledger = ledger
        self._progress = Signal()
        self._hurry = Signal()
        ledger.on_settled = self._wake
        self._nack_window = nack_window
        self._dead_letters = dead_letters
        self._store = store
        self._calls = calls
        self._has_ack = not calls.inherits("ack")
        self._meter = context.meter
        self.shard_tracker = shard_tracker
        self.tells_positions = self._has_ack or shard_tracker is not None
        """True if the source or the tracker of its shards takes every position, not only of the last one."""
        self.pace = Pace(SETTLE_SECONDS)
        self._history: HistoryRecorder
        self._finishing = False
        self._saved_at = float("-inf")

    async def open(self, position: bytes | None) -> None:
        """Start at this position. Call this before anything is read."""
        self._history = HistoryRecorder(
            await self._store.position_history(self._pipeline, self._context.node), position
        )

    def finish(self) -> None:
        """End `run` when everything in flight is settled. Call this when nothing more will be read."""
        self._finishing = True
        self._progress.set()
        self._hurry.set()

    def _wake(self) -> None:
        self._progress.set()
        if self._ledger.credit <= self._ledger.in_flight:
            self._hurry.set()

    async def run(self) -> None:
        ledger = self._ledger
        while ledger.in_flight or ledger.progress or not self._finishing:
            await self._progress.wait()
            # An idle source must not cause a write to the disk for every keepalive.
            due_at = self._saved_at + PROGRESS_SECONDS
            while ledger.progress and ledger.only_progress and not self._finishing and trio.current_time() < due_at:
                with trio.move_on_at(due_at):
                    await self._progress.wait()
            # Under load, wait a little so that one commit covers more messages. Not with half of the window in
            # flight: the reader would soon stand still.
            if trio.current_time() < self.pace.due_at:
                with trio.move_on_at(self.pace.due_at):
                    # Asked again: the signal may be of what the last commit has settled.
                    while not self._finishing and ledger.credit > ledger.in_flight:
                        await self._hurry.wait()
            if ranges := ledger.settled_ranges():
                await self._settle(ranges)

    async def _settle(self, ranges: Sequence[SettledRange]) -> None:
        letters, unhandled = self._within_nack_window(ranges)
        error: RunError | None = None
        if letters or unhandled is not None:
            ranges, error = await self._store_letters(ranges, letters, unhandled)
        if ranges:
            await self._context.commit.settle(self._context.node, ranges)
            self._release(ranges)
        # Raised last: the messages before the one that failed are settled, so a restart does not repeat them.
        if error is not None:
            raise error

    def _release(self, ranges: Sequence[SettledRange]) -> None:
        """Count the settled messages and return their credit to the reader."""
        now = self._meter.settled_at = trio.current_time()
        messages = 0
        for each in ranges:
            records, messages = each.records, messages + each.stop - each.start
            self._meter.acked += records
            self._meter.settling.observe(now - each.span.read_at, records)
        self._ledger.release(messages)
        self._meter.unwanted = self._ledger.unwanted

    async def commit(self, positions: Sequence[Sequence[bytes]]) -> None:
        """Make the last of these positions durable, then ack all of them to the source, if `tells_positions`."""
        meter, node, position = self._meter, self._context.node, positions[-1][-1]
        with meter.waiting(None, timing=meter.checkpoints):
            reach("settler.before_persist")
            with meter.waiting(WaitReason.STORE, timing=meter.persists):
                history = self._history.extend(position)
                histories = {} if history is None else {node: history}
                # Invariant 11: in one commit, so a crash leaves the old progress or the new, never a mix.
                await self._store.save_positions(self._pipeline, {node: position}, histories)
                if self.shard_tracker is not None:
                    await self.shard_tracker.advance(positions)
            self._saved_at = trio.current_time()
            reach("settler.after_persist")
            # Invariant 2: only now. An upstream that prunes on ack would lose what we read again after a crash.
            await self._ack(positions)

    async def _ack(self, positions: Sequence[Sequence[bytes]]) -> None:
        with PluginErrors(self._context.node, "ack"), self._meter.waiting(WaitReason.SOURCE_ACK):
            if self._has_ack:
                await self._calls("ack", join_positions(positions))
        reach("settler.after_ack")

    def take(self) -> tuple[list[SettledRange], list[DeadLetter]]:
        """Exactly-once: return the settled messages and their letters; raise if the nack window forbids one."""
        ranges = self._ledger.settled_ranges()
        letters, refused = self._within_nack_window(ranges)
        if refused is not None:
            raise self._nack_window.refusal(refused)
        return ranges, letters

    def history(self, ranges: Sequence[SettledRange]) -> dict[str, bytes]:
        """Exactly-once: return what the commit of these ranges adds to the position history; mostly nothing."""
        history = self._history.extend(ranges[-1].positions[-1]) if ranges else None
        return {} if history is None else {self._context.node: history.encode()}

    async def ack_and_release(self, ranges: Sequence[SettledRange]) -> None:
        """Exactly-once: ack these ranges and return their credit."""
        # I12: only called after the commit, with ranges in the order of the source.
        if ranges:
            await self._ack([each.positions for each in ranges])
            self._release(ranges)

    async def _store_letters(
        self, ranges: Sequence[SettledRange], letters: list[DeadLetter], unhandled: DeadLetter | None
    ) -> tuple[Sequence[SettledRange], RunError | None]:
        """Store these letters; return the ranges that may be acked, and an error if some may not."""
        error: RunError | None = None
        if letters:
            try:
                await self._dead_letters.store(letters)
            except LettersNotStored as failure:
                unhandled, error = letters[failure.stored], failure.error
                error.__cause__ = failure
        if unhandled is None:
            return ranges, None
        # Invariant 3: acks stop before the first message whose nack could not be handled.
        return _until(ranges, unhandled), error or self._nack_window.refusal(unhandled)

    def _within_nack_window(self, ranges: Sequence[SettledRange]) -> tuple[list[DeadLetter], DeadLetter | None]:
        """Return the letters that the nack window allows, and the first one that it does not."""
        letters: list[DeadLetter] = []
        for each in ranges:
            counted = 0
            for letter in each.nacks:
                before = each.records_before(letter.message.sequence) + letter.record_index
                # Several nacked pieces of one record count as one nack.
                if before >= counted:
                    self._nack_window.ack(before - counted)
                    if not self._nack_window.nack():
                        return letters, letter
                    counted = before + 1
                letters.append(letter)
            self._nack_window.ack(each.records - counted)
        return letters, None


def _until(ranges: Sequence[SettledRange], letter: DeadLetter) -> list[SettledRange]:
    """Return the ranges before the message of this letter."""
    before = []
    for each in ranges:
        # Cut, not dropped: the messages before the letter are handled and need not be repeated.
        stop = min(each.stop, letter.message.sequence - each.span.first)
        if stop > each.start:
            before.append(each._replace(stop=stop))
        if stop < each.stop:
            break
    return before


class NackWindow:
    """Allows at most `threshold` nacks among the last `size` outcomes; size 0 allows every nack.

    The first nack beyond that is refused and freezes the window: every later nack is refused too, and
    acks have no effect. A size of None is the default: of the first 100 outcomes at most 95 may be nacks, and
    later ones are all allowed.
    """

    def __init__(self, size: int | None, threshold: int) -> None:
        self._first_only = size is None
        if size is None:
            size, threshold = FIRST_RECORDS, FIRST_NACKS_MAX
        # With a threshold of 0 the first nack is refused, however long the window is.
        self._size = min(size, 1) if threshold == 0 else size
        self._threshold = threshold
        self._outcomes = 0
        self._nacks: deque[int] = deque()
        self._frozen = False

    def ack(self, count: int = 1) -> None:
        if not self._frozen:
            self._outcomes += count

    def nack(self) -> bool:
        """Count a nack; return True if it is allowed."""
        if self._size == 0:
            return True
        if self._frozen:
            return False
        self._outcomes += 1
        if self._first_only and self._outcomes > FIRST_RECORDS:
            return True
        self._nacks.append(self._outcomes)
        while self._nacks[0] <= self._outcomes - self._size:
            self._nacks.popleft()
        self._frozen = len(self._nacks) > self._threshold
        return not self._frozen

    def refusal(self, letter: DeadLetter) -> NackNotAllowed:
        """Return the error for the letter of a nack that is not allowed."""
        if self._first_only:
            error = NackNotAllowed(
                f"nearly all of the first records were refused: {len(self._nacks)} of {self._outcomes}; "
                f"{letter.node} refused the last one: {letter.error}",
                suggestion=letter.advise(
                    f"look at {letter.place}; fix the cause and run again, or accept any number with window_size=0"
                ),
            )
        else:
            error = NackNotAllowed(
                f"too many records were refused; {letter.node} refused one more: {letter.error}",
                suggestion=letter.advise(
                    f"look at {letter.place}; fix the cause and run again, or allow more with window_nack_threshold"
                ),
            )
        error.node = letter.node
        error.record = letter.message.source, letter.position
        return error


class HistoryRecorder:
    """Decides which commits extend the position history of a source: the first of a run, then one a minute."""

    def __init__(
        self, history: PositionHistory, position: bytes | None, clock: Callable[[], float] = time.time
    ) -> None:
        """Make a recorder: `history` is the stored one, and `position` is the start of the run."""
        self._history = history
        self._position = position
        self._clock = clock
        self._began_at: float | None = clock()

    def extend(self, position: bytes) -> PositionHistory | None:
        """Return the history to save with the commit of this position; mostly None."""
        now = self._clock()
        if self._began_at is not None:
            # If the clock was set back, the start of the run must still not be later than its first commit.
            start = HistoryPoint(min(self._began_at, now), self._position, start=True)
            self._history, self._began_at = self._history.with_points(start, HistoryPoint(now, position)), None
        # Also if the clock was set back.
        elif not 0 <= now - self._history.points[-1].at < MINUTE:
            self._history = self._history.with_points(HistoryPoint(now, position))
        else:
            return None
        return self._history
