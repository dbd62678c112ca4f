"""Settler: the one place where progress becomes durable, and the sole caller of a source's `ack`."""

import time
from collections.abc import Callable, Sequence
from itertools import chain

import trio

from conduit_py.batch import Span
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import NackNotAllowed, RunError
from conduit_py.killpoint import reach
from conduit_py.store.store import Store
from conduit_py.store.trail import Point, Trail
from conduit_py.stream.dead_letters import DeadLetterHandler, LettersNotStored, NackWindow
from conduit_py.stream.ledger import Ledger, SettledRange
from conduit_py.stream.meter import Meter
from conduit_py.stream.plugin_calls import PluginCaller, plugin_errors
from conduit_py.stream.shard_progress import ShardProgress
from conduit_py.stream.signal import Pace, Signal

SETTLE_SECONDS = 0.005


class Settler:
    """Takes the settled messages of one source in order: dead letters first, then the store, then the ack.

    Invariant 2: a position is acked only after every message up to it is handled and the position is
    durable. Invariant 3: in order, once each, and nothing from a message on whose nack could not be
    handled. Credit goes back to the reader last, so that the window bounds what a crash repeats.
    """

    def __init__(
        self,
        node: str,
        pipeline: str,
        ledger: Ledger,
        window: NackWindow,
        office: DeadLetterHandler,
        store: Store,
        calls: PluginCaller,
        meter: Meter,
        *,
        commits: bool,
        sharing: ShardProgress | None = None,
    ) -> None:
        self._node = node
        self._pipeline = pipeline
        self._ledger = ledger
        self._progress = Signal()
        self._hurry = Signal()
        ledger.on_settled = self._notice
        self._window = window
        self._office = office
        self._store = store
        self._calls = calls
        self._meter = meter
        self._commits = commits
        self.sharing = sharing
        self._pace = Pace(SETTLE_SECONDS)
        self._trail = HistoryRecorder(store, pipeline, node)
        self._finishing = False

    def finish(self) -> None:
        """Nothing more will be read: end when everything in flight is settled."""
        self._finishing = True
        self._progress.set()
        self._hurry.set()

    def _notice(self) -> None:
        self._progress.set()
        if self._credit_is_short:
            self._hurry.set()

    @property
    def _credit_is_short(self) -> bool:
        return self._ledger.credit <= self._ledger.in_flight

    async def run(self) -> None:
        while self._ledger.in_flight or not self._finishing:
            await self._progress.wait()
            await self._gather()
            stretches = self._ledger.settled()
            if stretches:
                await self._settle(stretches)

    async def _gather(self) -> None:
        """Under load, let a little more settle before the next commit, unless the reader is short of credit."""
        if not self._finishing and not self._credit_is_short:
            with trio.move_on_at(self._pace.due_at):
                await self._hurry.wait()

    async def _settle(self, stretches: Sequence[SettledRange]) -> None:
        handled, error = await self._bury(stretches)
        count = sum(stretch.stop - stretch.start for stretch in handled)
        if count:
            if self._commits:
                with self._pace.step():
                    await self.commit([stretch.positions for stretch in handled])
            self._count(handled)
            self._ledger.release(count)
        if error is not None:
            raise error

    def _count(self, stretches: Sequence[SettledRange]) -> None:
        now = self._meter.settled_at = trio.current_time()
        for stretch in stretches:
            records = stretch.records
            self._meter.acked += records
            self._meter.settling.observe(now - stretch.span.read_at, records)

    async def commit(self, positions: Sequence[Sequence[bytes]]) -> None:
        """Make the last of these positions durable, then tell the source about all of them."""
        with self._meter.timing(self._meter.checkpoints):
            await self._commit(positions)

    async def _commit(self, positions: Sequence[Sequence[bytes]]) -> None:
        reach("settler.before_persist")
        with self._meter.waiting("store"), self._meter.timing(self._meter.persists):
            position = positions[-1][-1]
            trails = await self._trail.trails(position)
            await self._store.save_positions(self._pipeline, {self._node: position}, trails)
            if self.sharing is not None:
                await self.sharing.advance(positions)
        reach("settler.after_persist")
        await self._ack(positions)

    async def _ack(self, positions: Sequence[Sequence[bytes]]) -> None:
        with plugin_errors(self._node, "ack"), self._meter.waiting("source ack"):
            if not self._calls.inherited("ack"):
                await self._calls("ack", list(chain.from_iterable(positions)))
        reach("settler.after_ack")

    def take(self) -> tuple[list[SettledRange], list[DeadLetter]]:
        """Exactly-once: what is settled, for a transaction to commit, and its letters, if the window allows them."""
        stretches = self._ledger.settled()
        letters, refused = self._allowed(stretches)
        if refused is not None:
            raise self._not_allowed(refused)
        return stretches, letters

    async def trails(self, stretches: Sequence[SettledRange]) -> dict[str, bytes]:
        """Exactly-once: where the source has been, for the commit of these to note; mostly nothing."""
        if not stretches:
            return {}
        trails = await self._trail.trails(stretches[-1].positions[-1])
        return {source: trail.encode() for source, trail in trails.items()}

    async def let_go(self, stretches: Sequence[SettledRange]) -> None:
        """Exactly-once: the transaction with these is committed: tell the source, and give the credit back."""
        if stretches:
            await self._ack([stretch.positions for stretch in stretches])
            count = sum(stretch.stop - stretch.start for stretch in stretches)
            self._count(stretches)
            self._ledger.release(count)

    async def commit_first(self, span: Span) -> None:
        """At-most-once: the span is done with before it has set out."""
        await self.commit([span.positions])

    async def _bury(self, stretches: Sequence[SettledRange]) -> tuple[list[SettledRange], RunError | None]:
        """Dead-letter the nacks. Gives what may be acked and, if that is not everything, why."""
        letters, refused = self._allowed(stretches)
        error: RunError | None = None
        unhandled = refused
        if letters:
            try:
                await self._office.store(letters)
            except LettersNotStored as stop:
                unhandled, error = letters[stop.stored], stop.error
        if unhandled is None:
            return list(stretches), None
        return _until(stretches, unhandled), error or self._not_allowed(unhandled)

    def _allowed(self, stretches: Sequence[SettledRange]) -> tuple[list[DeadLetter], DeadLetter | None]:
        """The letters that the window lets through, and the first that it does not."""
        letters: list[DeadLetter] = []
        for stretch in stretches:
            counted = 0
            for letter in stretch.nacks:
                before = stretch.records_before(letter.message.sequence) + letter.offset
                # Several pieces of one record are one outcome.
                if before >= counted:
                    self._window.ack(before - counted)
                    if not self._window.nack():
                        return letters, letter
                    counted = before + 1
                letters.append(letter)
            self._window.ack(stretch.records - counted)
        return letters, None

    def _not_allowed(self, letter: DeadLetter) -> NackNotAllowed:
        error = NackNotAllowed(
            f"too many records were refused; {letter.node} refused one more: {letter.error}",
            suggestion="remove the cause and run again, or allow more of them with window_nack_threshold",
        )
        error.node = letter.node
        return error


def _until(stretches: Sequence[SettledRange], letter: DeadLetter) -> list[SettledRange]:
    """What comes before the message of this letter."""
    before = []
    for stretch in stretches:
        stop = min(stretch.stop, letter.message.sequence - stretch.span.first)
        if stop > stretch.start:
            before.append(stretch._replace(stop=stop))
        if stop < stretch.stop:
            break
    return before


class HistoryRecorder:
    """Says which trail is to be saved with a position: with the first where the run began, then one a minute."""

    def __init__(self, store: Store, pipeline: str, source: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pipeline = pipeline
        self._source = source
        self._clock = clock
        self._began_at = clock()
        self._trail: Trail | None = None

    async def trails(self, position: bytes) -> dict[str, Trail]:
        """What goes with the commit of this position; mostly nothing."""
        now = self._clock()
        here = Point(now, position)
        if self._trail is None:
            before = (await self._store.positions(self._pipeline)).get(self._source)
            trail = await self._store.trail(self._pipeline, self._source)
            self._trail = trail.joined(Point(min(self._began_at, now), before, start=True), here)
        elif self._trail.due(now):
            self._trail = self._trail.joined(here)
        else:
            return {}
        return {self._source: self._trail}
