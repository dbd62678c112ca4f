"""MemoryStore: a store that lasts as long as the process, for tests, simulation and throw-away runs."""

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import trio

from conduit_py.errors import Repeated, StaleToken, StateFailed
from conduit_py.store.claim import Changes, ClaimState, OutOfStep, ShardChange
from conduit_py.store.dead_letter_store import DeadLetterStore, SqlLetters
from conduit_py.store.sqlite.letters import letters_in_memory
from conduit_py.store.store import Kind, Store, StoredEntry
from conduit_py.store.tables import OutboxMessage, ShardState, Tables, fenced_error, shard_after

T = TypeVar("T")


class MemoryStore(Store):
    """Behaves as the SQLite store does, without thread, lock or disk, so tests are deterministic.

    A write passes one checkpoint and then happens at once, so a cancelled caller has written nothing.
    With `fail_after=n` the first n writes succeed and every later one raises StateFailed without
    effect, as on a broken disk; a test may set it again at any time, None repairs the disk.
    `saved` has every successful `save_positions`, in order.
    """

    waits = False

    def __init__(self, fail_after: int | None = None, clock: Callable[[], float] = trio.current_time) -> None:
        self.fail_after = fail_after
        self.writes = 0
        self.saved: list[tuple[str, dict[str, bytes]]] = []
        self._rows: dict[tuple[str, Kind, str], bytes] = {}
        self._tables = MemoryTables(clock, self._start, self._save_positions, self._forget_positions)
        self.letters = MemoryDeadLetterStore(self._enter, self._enter_write)
        self._closed = False

    async def transact(self, work: Callable[[Tables], T]) -> T:
        await self._enter_write()
        return work(self._tables)

    async def look(self, work: Callable[[Tables], T]) -> T:
        await self._enter()
        return work(self._tables)

    def look_at_once(self, work: Callable[[Tables], T]) -> T:
        return work(self._tables)

    async def pipelines(self) -> list[str]:
        await self._enter()
        return sorted({pipeline for pipeline, _, _ in self._rows})

    async def close(self) -> None:
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        await self._enter()
        return sorted((row[2], value) for row, value in self._rows.items() if row[:2] == (pipeline, kind))

    async def _save(self, rows: list[StoredEntry]) -> None:
        await self._enter_write()
        self._rows.update({row[:3]: row.value for row in rows})
        if rows[0].kind == "position":
            self.saved.append((rows[0].pipeline, {row.node: row.value for row in rows if row.kind == "position"}))

    def _start(self, pipeline: str, source: str, position: bytes) -> None:
        self._rows.setdefault((pipeline, "position", source), position)

    def _save_positions(self, pipeline: str, changes: Changes) -> None:
        self._rows.update({(pipeline, "position", source): value for source, value in changes.positions.items()})
        self._rows.update({(pipeline, "trail", source): value for source, value in changes.histories.items()})
        self.saved.append((pipeline, dict(changes.positions)))

    def _forget_positions(self, pipeline: str) -> None:
        self._drop(pipeline, "position", None)

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        await self._enter_write()
        self._drop(pipeline, kind, node)

    def _drop(self, pipeline: str, kind: Kind, node: str | None) -> None:
        for row in [row for row in self._rows if row[:2] == (pipeline, kind) and node in (None, row[2])]:
            del self._rows[row]

    async def _enter(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise StateFailed("the state store is closed")

    async def _enter_write(self) -> None:
        await self._enter()
        if self.fail_after is not None and self.writes >= self.fail_after:
            raise StateFailed(f"the memory store fails after {self.fail_after} writes, as configured")
        self.writes += 1


class MemoryTables(Tables):
    """Plain dictionaries. A method checks everything before it changes anything, so nothing has to be undone."""

    def __init__(
        self,
        clock: Callable[[], float],
        start: Callable[[str, str, bytes], None],
        save_positions: Callable[[str, Changes], None],
        forget_positions: Callable[[str], None],
    ) -> None:
        """The functions save the first position of a source, save those of a commit, and forget all of an owner."""
        self._clock = clock
        self._start = start
        self._save_positions = save_positions
        self._forget_positions = forget_positions
        self._owners: dict[str, _Owner] = {}
        self._seen: dict[str, dict[bytes, float]] = {}
        self._outbox: dict[str, _Target] = {}
        self._numbered = 0
        self._shards: dict[str, dict[str, ShardState]] = {}

    def claim(self, owner: str) -> ClaimState:
        row = self._owners.setdefault(owner, _Owner(ClaimState(fence=0)))
        row.claimed = ClaimState(row.claimed.fence + 1, row.claimed.committed, row.claimed.checkpoint)
        return row.claimed

    def claim_state(self, owner: str) -> ClaimState | None:
        row = self._owners.get(owner)
        return row.claimed if row else None

    def start_position(self, owner: str, source: str, position: bytes) -> None:
        self._start(owner, source, position)

    def commit(self, owner: str, fence: int, changes: Changes) -> None:
        row = self._owners[owner]
        if row.claimed.fence != fence:
            raise fenced_error(owner, fence, row.claimed.fence)
        if (row.claimed.committed, row.claimed.checkpoint) == (changes.number, changes.checkpoint):
            return
        if changes.number != row.claimed.committed + 1:
            raise OutOfStep(owner, changes.number, row.claimed.committed)
        self._refuse_repeats(changes)
        shards = self._shards_after(changes.shards)

        # Only the lines above can refuse. From here on nothing fails, so nothing has to be undone.
        row.claimed = ClaimState(fence, changes.number, changes.checkpoint)
        row.put(changes.puts)
        for scope, key in changes.once:
            self._seen.setdefault(scope, {})[key] = self._clock()
        for message in changes.messages:
            self._numbered += 1
            pending = OutboxMessage(self._numbered, owner, message.target, message.key, message.body)
            self._outbox.setdefault(message.target, _Target()).pending[pending.number] = pending
        for (scope, name), shard in shards.items():
            self._shards[scope][name] = shard
        if changes.positions or changes.histories:
            self._save_positions(owner, changes)

    def _refuse_repeats(self, changes: Changes) -> None:
        new: set[tuple[str, bytes]] = set()
        for scope, key in changes.once:
            if (scope, key) in new or key in self._seen.get(scope, {}):
                raise Repeated(scope, key)
            new.add((scope, key))

    def _shards_after(self, changes: list[ShardChange]) -> dict[tuple[str, str], ShardState]:
        """The shards after these changes, applied in order. Raises StaleToken if one is refused."""
        now = self._clock()
        after: dict[tuple[str, str], ShardState] = {}
        for change in sorted(changes, key=lambda change: (change.scope, change.shard)):
            key = change.scope, change.shard
            before = after.get(key) or self._shards.get(change.scope, {}).get(change.shard)
            after[key] = shard_after(change, before, now)
        return after

    def reset(self, owner: str) -> None:
        self._forget_positions(owner)
        if row := self._owners.get(owner):
            row.claimed = ClaimState(row.claimed.fence + 1, row.claimed.committed + 1)
            row.state.clear()
            for scope in [scope for scope in self._seen if scope.startswith(f"{owner}/")]:
                del self._seen[scope]

    def get(self, owner: str, key: bytes) -> bytes | None:
        return self._owners[owner].state.get(key) if owner in self._owners else None

    def scan(self, owner: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        row = self._owners.get(owner)
        return sorted((key, value) for key, value in row.state.items() if key.startswith(prefix)) if row else []

    def get_all(self, owner: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key in keys if (value := self.get(owner, key)) is not None]

    def page(self, owner: str, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return [each for each in self.scan(owner, prefix) if each[0] >= start][:limit]

    def measure(self, owner: str, prefixes: Sequence[bytes]) -> list[tuple[int, int]]:
        parts = [self.scan(owner, prefix) for prefix in prefixes]
        return [(len(rows), sum(len(key) + len(value) for key, value in rows)) for rows in parts]

    def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        return self._seen.get(scope, {}).keys() & set(keys)

    def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        seen = self._seen.setdefault(scope, {})
        repeated = seen.keys() & set(keys)
        seen.update((key, self._clock()) for key in keys if key not in repeated)
        return repeated

    def forget(self, scope: str, age_seconds: float, limit: int) -> int:
        seen = self._seen.get(scope, {})
        before = self._clock() - age_seconds
        old = sorted((at, key) for key, at in seen.items() if at < before)[:limit]
        for _, key in old:
            del seen[key]
        return len(old)

    def targets(self) -> list[str]:
        return sorted(target for target, row in self._outbox.items() if row.pending)

    def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        row = self._outbox.setdefault(target, _Target())
        if row.holder != holder and row.until > self._clock():
            return None
        row.holder, row.until = holder, self._clock() + seconds
        return [row.pending[number] for number in sorted(row.pending)[:limit]]

    def extend(self, target: str, holder: str, seconds: float) -> bool:
        row = self._outbox.get(target)
        if row is None or row.holder != holder:
            return False
        row.until = self._clock() + seconds
        return True

    def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        row = self._outbox.get(target)
        if row is None or row.holder != holder:
            return False
        for number in numbers:
            row.pending.pop(number, None)
        return True

    def release(self, target: str, holder: str) -> None:
        row = self._outbox.get(target)
        if row is not None and row.holder == holder:
            row.holder, row.until = None, 0.0

    def shards(self, scope: str) -> list[ShardState]:
        return [shard for _, shard in sorted(self._shards.get(scope, {}).items())]

    def open_shards(self, scope: str, names: Sequence[str], token: str) -> list[ShardState]:
        shards = self._shards.setdefault(scope, {})
        now = self._clock()
        return [shards.setdefault(name, ShardState(name, token, updated=now)) for name in names]

    def acquire_shards(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> list[ShardState]:
        shards = self._shards.setdefault(scope, {})
        now = self._clock()
        acquired = []
        for name in names:
            shard = shards.get(name)
            if shard is not None and not shard.done and shard.updated <= now - idle_seconds:
                shards[name] = ShardState(name, token, shard.position, updated=now)
                acquired.append(shards[name])
        return acquired

    def advance_shards(self, changes: Sequence[ShardChange]) -> list[ShardChange]:
        refused: list[ShardChange] = []
        for change in sorted(changes, key=lambda change: (change.scope, change.shard)):
            try:
                ((_, shard),) = self._shards_after([change]).items()
            except StaleToken:
                refused.append(change)
            else:
                self._shards[change.scope][change.shard] = shard
        return refused

    def prune_shards(self, scope: str, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        shards = self._shards.setdefault(scope, {})
        now = self._clock()
        oldest_first = sorted(shards.values(), key=lambda shard: (shard.updated, shard.shard))
        young = [shard for shard in oldest_first if shard.updated >= now - age_seconds]
        kept = {shard.shard for shard in young[max(len(young) - count_max, 0) :]}
        kept |= {name for name, shard in shards.items() if not shard.done and shard.updated >= now - grace_seconds}
        doomed = shards.keys() - kept
        for name in doomed:
            del shards[name]
        return len(doomed)


@dataclass
class _Owner:
    claimed: ClaimState
    state: dict[bytes, bytes] = field(default_factory=dict)

    def put(self, puts: dict[bytes, bytes | None]) -> None:
        for key, value in puts.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value


@dataclass
class _Target:
    pending: dict[int, OutboxMessage] = field(default_factory=dict)
    holder: str | None = None
    until: float = 0.0


class MemoryDeadLetterStore(DeadLetterStore):
    """Behaves like the SQLite dead-letter store, on a database in memory: without thread or disk, at once.

    `enter` is awaited before a read and `enter_write` before a change; either may raise.
    """

    def __init__(self, enter: Callable[[], Awaitable[None]], enter_write: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._enter = enter
        self._enter_write = enter_write

    @cached_property
    def _opened(self) -> tuple[sqlite3.Connection, SqlLetters]:
        # Made when the first letter comes: most memory stores never see one.
        return letters_in_memory()

    @property
    def table(self) -> SqlLetters:
        """The letters as they are now, for tests that must not wait."""
        return self._opened[1]

    async def close(self) -> None:
        """Nothing to release: the store refuses calls after its close."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _look(self, work: Callable[[SqlLetters], T]) -> T:
        await self._enter()
        return work(self.table)

    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        await self._enter_write()
        connection, letters = self._opened
        connection.execute("BEGIN")
        try:
            result = work(letters)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return result
