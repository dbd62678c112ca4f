"""SqlTables: the tables of a store in SQL, written once for SQLite and PostgreSQL.

Statements have `?` in place of their parameters, keep to what both databases understand, and take the rest from the
Dialect of their SqlSession.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from conduit_py.errors import Repeated, StaleToken
from conduit_py.store.claim import Changes, ClaimState, OutOfStep, PublishedMessage, ShardChange
from conduit_py.store.tables import OutboxMessage, ShardState, Tables, fenced_error, shard_after


class Dialect(msgspec.Struct, frozen=True):
    """What the two databases write in different ways."""

    placeholder: str
    """In the place of a parameter."""
    lock_rows: str
    """The end of a SELECT that locks the rows it finds until the transaction ends."""
    text_position: str
    """The function that finds a text in another: 0 when it is not there."""
    json_array: str
    """A table with a column `value` made of the JSON array `{}`."""
    no_limit: str
    """In the place of a LIMIT where an OFFSET stands alone."""
    allows_nul: bool
    """Whether text may have a character U+0000."""


class SqlSession(ABC):
    """Statements in one transaction on one connection."""

    dialect: ClassVar[Dialect]

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock that all processes which share the database use."""

    @abstractmethod
    def run(self, sql: str, *parameters: object) -> int:
        """Run one statement; returns how many rows it changed."""

    @abstractmethod
    def rows(self, sql: str, *parameters: object) -> list[Any]:
        """The rows that a statement returns."""

    def value(self, sql: str, *parameters: object) -> Any:
        """The value that a statement returns, in one row of one column."""
        [(value,)] = self.rows(sql, *parameters)
        return value

    def text(self, text: str) -> str:
        """The text as the database can hold it: a NUL may have to be shown by another character."""
        return text if self.dialect.allows_nul else text.replace("\0", "␀")


def upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """A statement that inserts a row, or changes these columns of the row with the same key."""
    marks = ", ".join("?" * (len(key) + len(columns)))
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
    return (
        f"INSERT INTO {table} ({', '.join(key + columns)}) VALUES ({marks})"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


_ENTRY = upsert("entries", ("pipeline", "kind", "node"), ("value",))
_SHARD = "shard, token, position, done, updated"


class SqlTables(Tables):
    """One transaction on a database. Only statements about many rows at once are left to subclasses."""

    def __init__(self, sql: SqlSession) -> None:
        self.sql = sql

    def pipelines(self) -> list[str]:
        """Every pipeline with an entry, sorted."""
        return [name for (name,) in self.sql.rows("SELECT DISTINCT pipeline FROM entries ORDER BY pipeline")]

    def entries(self, pipeline: str, kind: str) -> list[tuple[str, bytes]]:
        """What is remembered of this kind, by node."""
        sql = "SELECT node, value FROM entries WHERE pipeline = ? AND kind = ? ORDER BY node"
        return self.sql.rows(sql, pipeline, kind)

    def forget_entries(self, pipeline: str, kind: str, node: str | None) -> None:
        """Remove the entry of this kind of one node, or of all nodes."""
        sql = "DELETE FROM entries WHERE pipeline = ? AND kind = ? AND node = coalesce(?, node)"
        self.sql.run(sql, pipeline, kind, node)

    @abstractmethod
    def record(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        """Record keys, all different, as seen now; returns those that were before.

        If there are any, the others may be recorded or not.
        """

    @abstractmethod
    def put(self, owner: str, values: Sequence[tuple[bytes, bytes]]) -> None:
        """Put these values in place of what was there."""

    @abstractmethod
    def delete(self, owner: str, keys: Sequence[bytes]) -> None: ...

    @abstractmethod
    def add_messages(self, owner: str, messages: Sequence[PublishedMessage]) -> None: ...

    def claim(self, owner: str) -> ClaimState:
        # One statement: two claims at the same time get two different fences.
        self.sql.run(
            "INSERT INTO claims (owner, fence, committed) VALUES (?, 1, 0)"
            " ON CONFLICT (owner) DO UPDATE SET fence = claims.fence + 1",
            owner,
        )
        claimed = self.claim_state(owner)
        assert claimed is not None
        return claimed

    def claim_state(self, owner: str) -> ClaimState | None:
        for row in self.sql.rows("SELECT fence, committed, checkpoint FROM claims WHERE owner = ?", owner):
            return ClaimState(*row)
        return None

    def commit(self, owner: str, fence: int, changes: Changes) -> None:
        # First: this locks the row of the claim, so commits of one owner run one after the other.
        if not self._advance(owner, fence, changes):
            return
        self._record_once(changes)
        now = self.sql.now()
        # Sorted: transactions that lock the same shards in the same order cannot deadlock.
        for change in sorted(changes.shards, key=lambda change: (change.scope, change.shard)):
            self._apply(change, now)
        if puts := [(key, value) for key, value in changes.puts.items() if value is not None]:
            self.put(owner, puts)
        if gone := [key for key, value in changes.puts.items() if value is None]:
            self.delete(owner, gone)
        if changes.messages:
            self.add_messages(owner, changes.messages)
        for kind, values in (("position", changes.positions), ("trail", changes.histories)):
            for source, value in values.items():
                self.sql.run(_ENTRY, owner, kind, source, value)

    def start_position(self, owner: str, source: str, position: bytes) -> None:
        # A run that lost its claim may still be here: it must not set back what its successor has committed.
        sql = "INSERT INTO entries (pipeline, kind, node, value) VALUES (?, 'position', ?, ?) ON CONFLICT DO NOTHING"
        self.sql.run(sql, owner, source, position)

    def _advance(self, owner: str, fence: int, changes: Changes) -> bool:
        """Record the checkpoint under this fence; False when it is the last one already."""
        # Invariant 11: fence, number and checkpoint change in one statement, so a fenced claim changes nothing.
        sql = "UPDATE claims SET committed = ?, checkpoint = ? WHERE owner = ? AND fence = ? AND committed = ?"
        if self.sql.run(sql, changes.number, changes.checkpoint, owner, fence, changes.number - 1):
            return True
        claimed = self.claim_state(owner)
        assert claimed is not None
        if claimed.fence != fence:
            raise fenced_error(owner, fence, claimed.fence)
        if (claimed.committed, claimed.checkpoint) != (changes.number, changes.checkpoint):
            raise OutOfStep(owner, changes.number, claimed.committed)
        # The last transaction again: its caller crashed after the commit, or another database carried it.
        return False

    def _record_once(self, changes: Changes) -> None:
        scopes: dict[str, dict[bytes, None]] = {}
        for scope, key in changes.once:
            keys = scopes.setdefault(scope, {})
            if key in keys:
                raise Repeated(scope, key)
            keys[key] = None
        for scope, keys in sorted(scopes.items()):
            if repeated := self.record(scope, list(keys)):
                raise Repeated(scope, next(key for key in keys if key in repeated))

    def _apply(self, change: ShardChange, now: float) -> None:
        shard = shard_after(change, self._shard(change.scope, change.shard, self.sql.dialect.lock_rows), now)
        self.sql.run(
            "UPDATE shards SET position = ?, done = ?, updated = ? WHERE scope = ? AND shard = ?",
            shard.position,
            int(shard.done),
            shard.updated,
            change.scope,
            change.shard,
        )

    def reset(self, owner: str) -> None:
        self.sql.run("DELETE FROM entries WHERE pipeline = ? AND kind = 'position'", owner)
        # One number is left out: a transaction that another database carried must not be adopted any more.
        renewed = "UPDATE claims SET fence = fence + 1, committed = committed + 1, checkpoint = NULL WHERE owner = ?"
        if self.sql.run(renewed, owner):
            self.sql.run("DELETE FROM owned WHERE owner = ?", owner)
            # All scopes named OWNER/…: "0" is the character after "/".
            self.sql.run("DELETE FROM seen WHERE scope >= ? AND scope < ?", f"{owner}/", f"{owner}0")

    def get(self, owner: str, key: bytes) -> bytes | None:
        for (value,) in self.sql.rows("SELECT value FROM owned WHERE owner = ? AND key = ?", owner, key):
            return bytes(value)
        return None

    def scan(self, owner: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        # A range, not LIKE: keys are bytes, and % or _ in them are no wildcards.
        sql = "SELECT key, value FROM owned WHERE owner = ? AND key >= ?"
        end = _prefix_end(prefix)
        if end is None:
            return self.sql.rows(f"{sql} ORDER BY key", owner, prefix)
        return self.sql.rows(f"{sql} AND key < ? ORDER BY key", owner, prefix, end)

    def page(self, owner: str, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        end = _prefix_end(prefix)
        assert end is not None, "a part of a state has a name"
        sql = "SELECT key, value FROM owned WHERE owner = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        return self.sql.rows(sql, owner, max(prefix, start), end, limit)

    def measure(self, owner: str, prefixes: Sequence[bytes]) -> list[tuple[int, int]]:
        sql = (
            "SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM owned"
            " WHERE owner = ? AND key >= ? AND key < ?"
        )
        found = [self.sql.rows(sql, owner, prefix, _prefix_end(prefix))[0] for prefix in prefixes]
        return [(int(count), int(size)) for count, size in found]

    def forget(self, scope: str, age_seconds: float, limit: int) -> int:
        return self.sql.run(
            "DELETE FROM seen WHERE number IN"
            " (SELECT number FROM seen WHERE scope = ? AND at < ? ORDER BY number LIMIT ?)",
            scope,
            self.sql.now() - age_seconds,
            limit,
        )

    def targets(self) -> list[str]:
        return [target for (target,) in self.sql.rows("SELECT DISTINCT target FROM intents ORDER BY target")]

    def lease(self, target: str, holder: str, seconds: float, limit: int) -> list[OutboxMessage] | None:
        now = self.sql.now()
        # One statement: of two forwarders at the same time, one gets the lease.
        taken = self.sql.run(
            "INSERT INTO leases (target, holder, expires) VALUES (?, ?, ?) ON CONFLICT (target) DO UPDATE"
            " SET holder = excluded.holder, expires = excluded.expires"
            " WHERE leases.holder = excluded.holder OR leases.expires <= ?",
            target,
            holder,
            now + seconds,
            now,
        )
        if not taken:
            return None
        sql = "SELECT number, owner, target, key, body FROM intents WHERE target = ? ORDER BY number LIMIT ?"
        return [OutboxMessage(*row) for row in self.sql.rows(sql, target, limit)]

    def extend(self, target: str, holder: str, seconds: float) -> bool:
        sql = "UPDATE leases SET expires = ? WHERE target = ? AND holder = ?"
        return self.sql.run(sql, self.sql.now() + seconds, target, holder) == 1

    def forwarded(self, target: str, holder: str, numbers: Sequence[int]) -> bool:
        # Locked to the end of the transaction: nobody else may get the lease between the check and the delete.
        held = f"SELECT 1 FROM leases WHERE target = ? AND holder = ?{self.sql.dialect.lock_rows}"
        if not self.sql.rows(held, target, holder):
            return False
        for number in numbers:
            self.sql.run("DELETE FROM intents WHERE target = ? AND number = ?", target, number)
        return True

    def release(self, target: str, holder: str) -> None:
        self.sql.run("DELETE FROM leases WHERE target = ? AND holder = ?", target, holder)

    def shards(self, scope: str) -> list[ShardState]:
        return [
            _shard_of_row(row)
            for row in self.sql.rows(f"SELECT {_SHARD} FROM shards WHERE scope = ? ORDER BY shard", scope)
        ]

    def open_shards(self, scope: str, names: Sequence[str], token: str) -> list[ShardState]:
        # A shard that exists keeps its token: to open it must not take it from its owner.
        sql = (
            "INSERT INTO shards (scope, shard, token, position, done, updated) VALUES (?, ?, ?, ?, 0, ?)"
            " ON CONFLICT (scope, shard) DO NOTHING"
        )
        now = self.sql.now()
        for name in sorted(names):
            self.sql.run(sql, scope, name, token, b"", now)
        opened = [self._shard(scope, name) for name in names]
        return [shard for shard in opened if shard is not None]

    def acquire_shards(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> list[ShardState]:
        # The conditions are in the statement: of two that acquire a shard at once, the second finds it changed.
        sql = "UPDATE shards SET token = ?, updated = ? WHERE scope = ? AND shard = ? AND done = 0 AND updated <= ?"
        now = self.sql.now()
        acquired = {name for name in sorted(names) if self.sql.run(sql, token, now, scope, name, now - idle_seconds)}
        shards = [self._shard(scope, name) for name in names if name in acquired]
        return [shard for shard in shards if shard is not None]

    def advance_shards(self, changes: Sequence[ShardChange]) -> list[ShardChange]:
        refused, now = [], self.sql.now()
        for change in sorted(changes, key=lambda change: (change.scope, change.shard)):
            try:
                self._apply(change, now)
            except StaleToken:
                refused.append(change)
        return refused

    def prune_shards(self, scope: str, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        now = self.sql.now()
        return self.sql.run(
            "DELETE FROM shards WHERE scope = ? AND (done = 1 OR updated < ?) AND shard NOT IN"
            " (SELECT shard FROM shards WHERE scope = ? AND updated >= ? ORDER BY updated DESC, shard DESC LIMIT ?)",
            scope,
            now - grace_seconds,
            scope,
            now - age_seconds,
            count_max,
        )

    def _shard(self, scope: str, name: str, lock: str = "") -> ShardState | None:
        for row in self.sql.rows(f"SELECT {_SHARD} FROM shards WHERE scope = ? AND shard = ?{lock}", scope, name):
            return _shard_of_row(row)
        return None


def _shard_of_row(row: tuple[str, str, bytes, int, float]) -> ShardState:
    name, token, position, done, updated = row
    return ShardState(name, token, position, bool(done), updated)


def _prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key after all keys with this prefix; None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
