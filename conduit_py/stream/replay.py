"""Replay: sends dead letters through the pipeline again, each from the nodes that refused it."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import groupby, islice
from operator import or_
from typing import NamedTuple

import msgspec
import trio

from conduit_py import metadata
from conduit_py.batch import Batch, MessageId
from conduit_py.crash_point import reach
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import DeadLetterFailed, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.source import SourceConnector
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.stored_letter import QueuedLetter, SettledLetter, StoredLetter, remaining_letters
from conduit_py.stream.commit import CommitStrategy
from conduit_py.stream.fan_out import FanOut, run_chain
from conduit_py.stream.ledger import Ledger, SettledRange
from conduit_py.stream.meter import Meter, WaitReason
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.signal import Signal

REPLAY_WINDOW = 1024
"""Letters in flight at once. It bounds the memory for records that the pipeline has already dropped."""
SEND_MAX = 256


class Entry(NamedTuple):
    """Where a letter enters: the processors that it passes, where it is sent then, and the votes it needs."""

    votes: int
    chain: list[ProcessorNode]
    fan_out: FanOut


class ReplayEntry(SourceConnector[Options]):
    """Represents a source that another process reads. Nothing is read here, but its dead letters enter here."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def read(self, n: int) -> list[Record]:
        raise NotImplementedError("only dead letters enter here")


class Replay:
    """Sends queued letters in order, and removes those that every node accepted.

    A letter keeps the identity of its message, and so its delivery key. Letters have their own ledger,
    so they move no position and count in no source's nack window. When all nodes that a letter was sent
    to have answered, one step removes it or stores it with one more refusal. If the run ends before
    that, the letter stays queued for the next run.

    In exactly-once pipelines letters are part of transactions, and `take` and `release` replace `settle`.
    """

    def __init__(
        self,
        pipeline: str,
        letters: DeadLetterStore,
        ledger: Ledger,
        entries: Mapping[str, Entry],
        meter: Meter,
        wake: Signal,
        commit: CommitStrategy,
        *,
        scopes: Mapping[str, str],
    ) -> None:
        """Make a replay. The ledger must set `wake` when it releases messages; `scopes` has every source."""
        self._pipeline = pipeline
        self._letters = letters
        self._ledger = ledger
        self._entries = entries
        self._meter = meter
        self._scopes = scopes
        self._sources = len(scopes)
        self._commit = commit
        self.node = meter.node
        self._wake = wake
        self._progress = Signal()
        ledger.on_settled = self._progress.set
        self._everyone = reduce(or_, (entry.votes for entry in entries.values()))
        self._on_their_way: dict[int, QueuedLetter] = {}
        self._turn = 0
        self._stopping = False
        self._all_sent = False

    def stop(self) -> None:
        """Send no more letters; those in flight are still settled."""
        self._stopping = True
        self._wake.set()

    def finish_source(self) -> None:
        """Count a source that has ended. After the last one, `feed` ends when no letter is queued."""
        self._sources -= 1
        self._wake.set()

    async def feed(self) -> None:
        with ExitStack() as open_ends, self._letters.watch(self._pipeline, self._wake.set):
            for entry in self._entries.values():
                open_ends.enter_context(entry.fan_out)
            while letters := await self._next():
                await self._send(letters)
        self._all_sent = True
        self._progress.set()
        self._commit.finish(self.node)

    def take(self) -> list[SettledLetter]:
        """Exactly-once: return the settled letters, for a transaction to commit."""
        return [outcome for each in self._ledger.settled_ranges() for outcome in self._outcomes(each)]

    async def release(self, outcomes: Sequence[SettledLetter]) -> None:
        """Exactly-once: save these outcomes. Call this after the commit of their transaction."""
        if outcomes:
            await self._save(outcomes)
            self._count(outcomes)

    async def settle(self) -> None:
        while self._ledger.in_flight or not self._all_sent:
            await self._progress.wait()
            ranges = self._ledger.settled_ranges()
            if ranges:
                await self._settle(ranges)

    async def _next(self) -> list[QueuedLetter]:
        """Wait for queued letters; return none after a stop or at the end."""
        while not self._stopping:
            if room := min(SEND_MAX, self._ledger.credit):
                letters = await self._letters.replay_queue(self._pipeline, self._turn, room)
                if letters:
                    self._turn = letters[-1].turn
                    return letters
                if not self._sources:
                    return []
            await self._wake.wait()
        return []

    async def _send(self, letters: Sequence[QueuedLetter]) -> None:
        """Send letters in order; adjacent letters of one source that enter at the same nodes form a batch."""
        await self._put_back([each for each in letters if self._obstacle(each.letter)])
        possible = [each for each in letters if not self._obstacle(each.letter)]
        for (source, nodes), group in groupby(possible, lambda each: (each.letter.source, each.letter.queued_for)):
            while together := list(islice(group, self._together)):
                await self._enter(together)
                await self._set_out(source, nodes, together)

    @property
    def _together(self) -> int:
        """The size limit of a batch: a batch is never cut, so it must fit into a transaction."""
        admitted = self._commit.admit_max
        return SEND_MAX if admitted is None else min(SEND_MAX, admitted)

    async def _enter(self, group: Sequence[QueuedLetter]) -> None:
        last = group[-1].letter
        records = [each.letter.record for each in group]
        positions = [each.letter.position for each in group]
        await self._commit.admit(f"{last.source} (dead letter {last.id})", records, positions)

    async def _set_out(self, source: str, nodes: list[str], group: list[QueuedLetter]) -> None:
        ledger = self._ledger
        ledger.admit(len(group))
        span = ledger.register([each.letter.position for each in group], trio.current_time())
        span.origin, span.scope = source, self._scopes.get(source, "")
        sequences = range(span.first, span.first + len(group))
        self._on_their_way.update(zip(sequences, group, strict=True))
        votes = sum(self._entries[node].votes for node in nodes)
        # The other destinations accepted the message when it was first sent, or never receive it. Without
        # their votes the letter would stay open for ever.
        ledger.ack(span, sequences, self._everyone & ~votes)
        pieces = [each.letter.piece for each in group]
        for node in nodes:
            # Copied: a letter that is refused again is stored as it was, not as processors left it.
            records = [each.letter.records[node].copy() for each in group]
            batch = Batch(span, records, sequences, pieces if any(pieces) else None)
            await run_chain(self._entries[node].chain, batch, self._entries[node].fan_out)

    async def _settle(self, ranges: Sequence[SettledRange]) -> None:
        outcomes = [outcome for each in ranges for outcome in self._outcomes(each)]
        # Saved first: a crash before the release sends the letters again, and never loses one.
        await self._save(outcomes)
        self._count(outcomes)

    def _count(self, outcomes: Sequence[SettledLetter]) -> None:
        delivered = sum(not outcome.left for outcome in outcomes)
        self._meter.acked += delivered
        self._meter.refused += len(outcomes) - delivered
        self._meter.settled_at = trio.current_time()
        self._ledger.release(len(outcomes))

    def _outcomes(self, settled_range: SettledRange) -> Iterable[SettledLetter]:
        refused: dict[int, list[DeadLetter]] = {}
        for letter in settled_range.nacks:
            refused.setdefault(letter.message.sequence, []).append(letter)
        first = settled_range.span.first
        for sequence in range(first + settled_range.start, first + settled_range.stop):
            queued = self._on_their_way.pop(sequence)
            yield SettledLetter.of(queued, remaining_letters(queued.letter, refused.get(sequence, [])))

    async def _save(self, outcomes: Sequence[SettledLetter]) -> None:
        reach("replay.before_settle")
        try:
            with self._meter.waiting(WaitReason.DEAD_LETTERS):
                await self._letters.settle(outcomes)
        except RecordRefused as error:
            raise DeadLetterFailed(
                f"a dead letter that was refused again could not be stored: {error.message}",
                suggestion=error.suggestion,
            ) from error
        reach("replay.after_settle")

    async def _put_back(self, letters: Sequence[QueuedLetter]) -> None:
        if letters:
            await self._save([SettledLetter.of(each, self._put_back_letter(each.letter)) for each in letters])
            self._meter.refused += len(letters)

    def _put_back_letter(self, letter: StoredLetter) -> list[StoredLetter]:
        """Return the letter as refused by the nodes where it cannot enter; it was not sent to any other."""
        why = self._obstacle(letter)
        nodes = [node for node in letter.queued_for if node not in self._entries] or letter.queued_for
        first, *others = [
            DeadLetter(
                letter.pipeline,
                MessageId(letter.source, 0, letter.piece),
                letter.position,
                letter.records[node],
                [Failure(node, why)],
            )
            for node in nodes
        ]
        for other in others:
            first.join(other)
        return remaining_letters(msgspec.structs.replace(letter, queued_for=nodes), [first])

    def _obstacle(self, letter: StoredLetter) -> str:
        """Return why the letter cannot be sent in the current pipeline, or ""."""
        gone = [node for node in letter.queued_for if node not in self._entries]
        if gone:
            return f"not sent again: {', '.join(gone)} is no longer in the pipeline"
        if any(metadata.KEPT_AS_TEXT in letter.records[node].metadata for node in letter.queued_for):
            return "not sent again: it had a value that cannot be stored, which was replaced by text; edit it first"
        votes = 0
        # Sent to two nodes of one branch, the record would reach the destinations behind them twice.
        for node in letter.queued_for:
            if votes & self._entries[node].votes:
                return f"not sent again: {', '.join(letter.queued_for)} are now on one branch; send it to one of them"
            votes |= self._entries[node].votes
        return ""
