"""CommitTogether: the transaction loop of exactly-once: gather, stage, commit in one fenced step, apply, ack."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import trio

from conduit_py.crash_point import reach
from conduit_py.dead_letter import DeadLetter, record_place
from conduit_py.errors import Fenced, NodeFailed, RunError
from conduit_py.exactly_once.gate import HeldRecords, Sealed, TransactionGate, within_windows
from conduit_py.exactly_once.participants import (
    Participants,
    TransactionCheckpoint,
    decode_letters,
    decode_replays,
    encode_letters,
    encode_replays,
    taken_over,
)
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.graph.node import Graph
from conduit_py.outbox.forwarder import PipelineForwarder
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk.destination import DestinationConnector, StagedDestination
from conduit_py.sdk.state import State
from conduit_py.sdk.state_values import KEY_BYTES
from conduit_py.store.claim import Changes, Claim, ClaimedValues, ShardChange
from conduit_py.store.store import Store
from conduit_py.stream.commit import CommitStrategy, RunParts, Task
from conduit_py.stream.ledger import SettledRange

log = logging.getLogger("conduit_py")

FORGET_SECONDS = 60.0
"""The interval between two removals of expired keys."""


class CommitTogether(CommitStrategy):
    """Makes the progress of all sources of a run durable together, in transactions.

    The promise rests on the order. All writes are durable before the commit, and none is visible before (I4).
    Positions, state, seen keys and intents are in one commit (I6), which fails after a newer claim (I7). Recovered
    intents are carried out before the first new commit (I8). Acks follow the commit, in order, once (I12).

    The first `isolated` records are committed in transactions of `size` records, without overlap.
    """

    awaits_flushes = True
    channel_size = 16  # The next transaction is read and processed while writers wait for the commit of the last.

    def __init__(self, graph: Graph, store: Store, *, isolated: int = 0, size: int = 1) -> None:
        self._pipeline = graph.pipeline.id
        self._store = store
        self._limits = within_windows(graph, graph.pipeline.settings.transaction or TransactionLimits())
        self._atomic = {source.id for source in graph.pipeline.sources if source.settings.atomic}
        self.isolated = isolated
        """The number of records left to commit in small transactions."""
        self.gate = TransactionGate(self._limits.model_copy(update={"max_records": size}) if isolated else self._limits)
        self._committing = 0
        self._finished_for: dict[str, int] = {}
        self._forget_at = 0.0
        self._positions: dict[str, bytes] = {}
        self._deferrals: dict[str, HeldRecords] = {}
        self._parts: RunParts
        self._participants: Participants
        self._claim: Claim
        self._forwarder: PipelineForwarder | None = None

    @property
    def holds_writes(self) -> bool:  # type: ignore[override]
        return self.gate.holds_writes

    @property
    def closing(self) -> bool:  # type: ignore[override]
        return self.gate.closing

    @property
    def uncommitted(self) -> int:
        """The number of records in the open transaction and in the one that is being committed."""
        return self._committing + self.gate.records

    @property
    def one_group(self) -> bool:
        """True if it isolates records one by one and has come to a group that must not be divided."""
        return bool(self.isolated) and self.gate.limits.max_records == 1 and self.gate.units == 1

    def enlist(self, parts: RunParts) -> list[Task]:
        self._parts = parts
        letters = parts.dead_letters.staged_calls
        parts.dead_letters.in_transaction = letters is not None
        shared = [settler.shard_tracker for settler in parts.settlers.values() if settler.shard_tracker is not None]
        # I14: only the store can check the tokens of shared work inside its commit, so it must carry the commit.
        self._participants = Participants(
            parts.destinations, {DEAD_LETTERS: letters} if letters else {}, may_have_home=not shared
        )
        for tracker in shared:
            tracker.on_takeover = self._finish_for
        for ledger in parts.ledgers.values():
            ledger.on_quiet = self.gate.changed.set
            ledger.may_hold = bool(self._deferrals)
        self.gate.entrants = len(parts.settlers) + (parts.replay is not None)
        self._batch_sizes = {id: buffer.batch_size for id, buffer in parts.read_buffers.items()}
        self._limit_batches()
        tasks = [Task(self._pipeline, self.run)]
        if parts.outbox:
            self._forwarder = PipelineForwarder(self._store.outbox, parts.outbox)
            tasks.append(Task("outbox", self._forwarder.run, background=True))
        return tasks

    def _limit_batches(self) -> None:
        """Limit batches to the size of a transaction, because a batch is never cut."""
        self.admit_max = self.gate.limits.max_records
        for id, buffer in self._parts.read_buffers.items():
            buffer.resize(min(self._batch_sizes[id], self.gate.limits.max_records))

    def stages(self, connector: DestinationConnector[Any]) -> bool:
        return isinstance(connector, StagedDestination)

    def new_state(self, targets: frozenset[str] | None) -> State:
        state = State()
        state.targets = targets
        return state

    def new_deferral(self, node: str, voters: int) -> HeldRecords:
        self._deferrals[node] = held = HeldRecords(self.gate, voters)
        return held

    async def admit(
        self, source: str, records: Sequence[Record], positions: Sequence[bytes], continues: bool = False
    ) -> None:
        await self.gate.enter(source, records, positions[-1], continues and source in self._atomic)

    def advance(self, source: str, continues: bool, *, new: bool) -> None:
        self.gate.advance(source, continues, new=new)

    async def before_write(self) -> None:
        await self.gate.wait_writable()

    async def settle(self, source: str, ranges: Sequence[SettledRange]) -> None:
        raise AssertionError("the transaction loop takes settled ranges from the settlers itself")

    def finish(self, source: str) -> None:
        self.gate.leave(source)

    async def claim(self) -> None:
        self._claim = await self._store.claim(self._pipeline)

    async def recover(self) -> None:
        """Carry out the remaining work of the last committed transaction (I8), and load the state."""
        claim = self._claim
        last_home = TransactionCheckpoint.decode(self._pipeline, claim.checkpoint).home
        await self._participants.adopt(claim, last_home, await self._store.positions(self._pipeline))
        # Decoded again: `adopt` may have committed to the store what only the home had.
        checkpoint = TransactionCheckpoint.decode(self._pipeline, claim.checkpoint)
        await self._participants.begin(claim, checkpoint.intents)
        await self._parts.dead_letters.store_all(decode_letters(checkpoint.letters))
        # I11: before any letter is sent. Letters that the last transaction delivered may still be queued.
        if checkpoint.replayed:
            await self._store.letters.settle(decode_replays(checkpoint.replayed))
        await self._load_states()
        reach("transaction.recovered")

    async def _finish_for(self, owner: str) -> None:
        """Apply the last committed intents of another pipeline before this one continues its shard."""
        claimed = await self._store.claim_state(owner)
        if claimed is not None and self._finished_for.get(owner) != claimed.committed:
            await self._participants.apply_for(owner, TransactionCheckpoint.decode(owner, claimed.checkpoint).intents)
            self._finished_for[owner] = claimed.committed

    async def _load_states(self) -> None:
        stored = [ClaimedValues(self._store, self._pipeline, node) for node in self._parts.states]
        sizes = await self._claim.measure([each.prefix for each in stored])
        for (node, state), values, (count, size) in zip(self._parts.states.items(), stored, sizes, strict=True):
            if size + KEY_BYTES * count > state.cache_bytes:
                state.load_evicted(count, size - len(values.prefix) * count, partial(self._seen, node), values)
            else:
                state.load(await values.load() if count else {}, partial(self._seen, node), values)

    def _scope(self, node: str, scope: str) -> str:
        # One scope per node: a conflict with another writer would be found in the store, after the home's commit.
        return f"{self._pipeline}/{node}/{scope}"

    async def _seen(self, node: str, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        return await self._claim.seen(self._scope(node, scope), keys)

    async def _forget_old_keys(self) -> None:
        """Remove expired keys at intervals, in separate transactions; unfinished work has none (I13)."""
        if trio.current_time() < self._forget_at:
            return
        self._forget_at = trio.current_time() + FORGET_SECONDS
        for node, state in self._parts.states.items():
            for scope, seconds in state.retentions.items():
                await self._store.seen.forget(self._scope(node, scope), seconds)

    async def run(self) -> None:
        self._positions = await self._store.positions(self._pipeline)
        try:
            while await self._gather():
                sealed = self._seal()
                # During isolation a failing record must not cancel the commit of the transaction before it.
                overlaps = not self.isolated
                if overlaps:
                    self._open_next()
                started = trio.current_time()
                with self._timing(sealed):
                    await self._commit(sealed)
                    await self._forget_old_keys()
                self.gate.pace.end_step(started)
                if not overlaps:
                    self._open_next()
                    self.gate.release()
            if self._forwarder is not None:
                await self._forwarder.finish()
        except Fenced as error:
            raise taken_over(self._pipeline, error) from error

    def _timing(self, sealed: Sealed) -> ExitStack:
        """Observe the duration of the commit for every source in the transaction."""
        stack = ExitStack()
        stack.enter_context(self._parts.observe_transaction(sealed))
        for source in sealed.positions:
            meter = self._parts.meters[source]
            stack.enter_context(meter.waiting(None, timing=meter.checkpoints))
        return stack

    async def _gather(self) -> bool:
        """Close the open transaction when due, and wait until it is settled. Returns False if it is empty."""
        gate = self.gate
        while not gate.abandoned and (gate.entrants or not self._quiet):
            due_at = gate.due_at(stalled=self._quiet)
            if due_at <= trio.current_time():
                break
            with trio.move_on_at(due_at):
                await gate.changed.wait()
        gate.close()
        while not self._quiet or gate.in_group:
            if gate.abandoned:
                # I18: a part of a group is written, so nothing of this transaction may be committed.
                log.info("%s was stopped inside of a group: the next run reads it again", self._pipeline)
                return False
            await gate.changed.wait()
        return gate.records > 0 or gate.has_progress

    def _open_next(self) -> None:
        """Begin the next transaction with the records deferred to it."""
        for deferral in self._deferrals.values():
            deferral.open()
        self.gate.open_next()

    @property
    def _quiet(self) -> bool:
        """True if every record of the open transaction is settled or held for the next one."""
        ledgers = self._parts.ledgers
        held: dict[str, dict[int, int]] = {}
        for deferral in self._deferrals.values():
            for (source, first), votes in deferral.votes.items():
                held.setdefault(source, {})[first] = votes
        if not held:
            return all(ledger.quiet for ledger in ledgers.values())
        return all(ledger.quiet_but_for(held.get(source, {})) for source, ledger in ledgers.items())

    def _seal(self) -> Sealed:
        """Collect all changes of the transaction. No await: nothing of the next one may be mixed in."""
        ranges: dict[str, list[SettledRange]] = {}
        letters: list[DeadLetter] = []
        for source, settler in self._parts.settlers.items():
            ranges[source], refused = settler.take()
            letters += refused
        replayed = self._parts.replay.take() if self._parts.replay is not None else []
        self._parts.dead_letters.check(letters)
        drained = {node: state.drain() for node, state in self._parts.states.items()}
        self._committing = self.gate.seal([batch for each in self._deferrals.values() for batch in each.held])
        return Sealed(
            self._committing,
            ranges,
            letters,
            replayed,
            {f"{node}\0{key}".encode(): value for node, each in drained.items() for key, value in each.puts.items()},
            [(self._scope(node, scope), key) for node, each in drained.items() for scope, key in each.once],
            [message for each in drained.values() for message in each.messages],
        )

    async def _commit(self, sealed: Sealed) -> None:
        letters, participants = self._parts.dead_letters, self._participants
        if letters.in_transaction:
            await letters.store_all(sealed.letters)
        reach("transaction.before_stage")
        # I4: every write is durable before the commit starts, and invisible until it is done.
        intents = await participants.stage()
        reach("transaction.before_commit")
        changes = self._changes(sealed, intents)
        for source, ranges in sealed.ranges.items():
            changes.histories |= self._parts.settlers[source].history(ranges)
        # I6: one commit. A crash leaves positions, state, keys and intents all as before, or all as after.
        await participants.commit(self._claim, changes)
        self._positions |= sealed.positions
        if self._forwarder is not None and sealed.outbox:
            self._forwarder.wake()
        reach("transaction.after_commit")
        await participants.apply(intents)
        if not letters.in_transaction:
            await letters.store_all(sealed.letters)
        if self._parts.replay is not None:
            await self._parts.replay.release(sealed.replayed)
        reach("transaction.after_apply")
        self._committing = 0
        # I5: only now may the next transaction be written. I12: only now are the sources acked.
        self.gate.release()
        for source, ranges in sealed.ranges.items():
            await self._parts.settlers[source].ack_and_release(ranges)
        self._past(sealed.records)

    def _changes(self, sealed: Sealed, intents: dict[str, bytes]) -> Changes:
        # I11: a staged handler has its letters in the commit already. Any other gets them again after a crash.
        letters = [] if self._parts.dead_letters.in_transaction else encode_letters(sealed.letters)
        replayed = encode_replays(sealed.replayed)
        before = {source: self._positions.get(source) for source in sealed.positions}
        checkpoint = TransactionCheckpoint(self._participants.home or "", intents, letters, replayed, before)
        return sealed.changes(self._claim.committed + 1, checkpoint.encode(), self._shards(sealed))

    def _shards(self, sealed: Sealed) -> list[ShardChange]:
        """Return the progress of shared work, which commits together with its output (I14)."""
        return [
            change
            for source, settler in self._parts.settlers.items()
            if settler.shard_tracker is not None
            for change in settler.shard_tracker.changes(each.positions for each in sealed.ranges[source])
        ]

    def _past(self, count: int) -> None:
        if self.isolated:
            self.isolated = max(0, self.isolated - count)
            if not self.isolated:
                self.gate.limits = self._limits
                self._limit_batches()

    def explain(self, error: RunError) -> None:
        if (self.uncommitted == 1 or self.one_group) and (error.suggestion is None or isinstance(error, NodeFailed)):
            place = record_place(*self.gate.last)
            if self.uncommitted == 1:
                error.record = self.gate.last
            else:
                place = f"the group of {place}"
            error.suggestion = "; ".join(filter(None, (error.suggestion, f"everything before {place} is committed")))
