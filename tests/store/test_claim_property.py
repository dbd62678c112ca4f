"""Any sequence of claims, commits and leases: every store does what the plain model in memory does."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_py.errors import ConduitError
from conduit_py.store.claim import Changes, Claim, PublishedMessage, ShardChange
from conduit_py.store.memory import MemoryStore
from conduit_py.store.postgres.store import PostgresStore
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store

TABLES = ("entries", "claims", "owned", "seen", "intents", "leases", "shards")
OWNERS = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["x", "y", "z"])
KEYS = st.sampled_from([b"", b"k", b"k\xff", b"\xff", b"\x00"])
TOKENS = st.sampled_from(["mine", "yours"])
POSITIONS = st.sampled_from([b"", b"1", b"2"])

PROGRESS = st.tuples(POSITIONS, POSITIONS).filter(lambda pair: pair[0] < pair[1])
shard_changes = st.builds(
    lambda scope, shard, token, progress, done: ShardChange(scope, shard, token, progress[0], progress[1], done),
    NAMES,
    NAMES,
    TOKENS,
    PROGRESS,
    st.booleans(),
)
changes = st.builds(
    Changes,
    number=st.integers(-1, 2),
    checkpoint=st.sampled_from([b"", b"c"]),
    puts=st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=3)), max_size=3),
    once=st.lists(st.tuples(NAMES, KEYS), max_size=2),
    messages=st.lists(st.builds(PublishedMessage, NAMES, KEYS, st.binary(max_size=3)), max_size=2),
    shards=st.lists(shard_changes, max_size=2),
    positions=st.dictionaries(NAMES, POSITIONS, max_size=2),
)
steps = st.one_of(
    st.tuples(st.just("claim"), OWNERS),
    st.tuples(st.just("commit"), st.integers(0, 5), changes),
    st.tuples(st.just("reset"), OWNERS),
    st.tuples(st.just("remember"), NAMES, st.lists(KEYS, max_size=2)),
    st.tuples(st.just("lease"), NAMES, TOKENS),
    st.tuples(st.just("forward"), NAMES, TOKENS, st.integers(0, 3)),
    st.tuples(st.just("release"), NAMES, TOKENS),
    st.tuples(st.just("open"), NAMES, st.lists(NAMES, max_size=2, unique=True), TOKENS),
    st.tuples(st.just("acquire"), NAMES, st.lists(NAMES, max_size=2, unique=True), TOKENS),
    st.tuples(st.just("prune"), NAMES, st.integers(0, 2)),
)


class Player:
    """Takes the steps on one store, and tells what each has led to in words that any store would use."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.claims: list[Claim] = []
        self.numbers: dict[str, list[int]] = {}

    async def take(self, what: str, *arguments: Any) -> object:
        action: Callable[..., Awaitable[object]] = getattr(self, f"_{what}")
        try:
            return await action(*arguments)
        except ConduitError as error:
            return type(error), str(error)

    async def _claim(self, owner: str) -> object:
        claim = await self.store.claim(owner)
        self.claims.append(claim)
        return claim.fence, claim.committed, claim.checkpoint

    async def _commit(self, which: int, changes: Changes) -> object:
        if not self.claims:
            return None
        claim = self.claims[-1 - which % len(self.claims)]
        await claim.commit(
            Changes(
                claim.committed + changes.number,
                changes.checkpoint,
                changes.puts,
                changes.once,
                changes.messages,
                changes.shards,
                changes.positions,
            )
        )
        return claim.committed

    async def _reset(self, owner: str) -> object:
        await self.store.reset_claim(owner)
        return None

    async def _remember(self, scope: str, keys: list[bytes]) -> object:
        return await self.store.seen.remember(scope, keys)

    async def _lease(self, target: str, holder: str) -> object:
        pending = await self.store.outbox.lease(target, holder, 1000, 10)
        if pending is None:
            return None
        self.numbers[target] = [intent.number for intent in pending]
        return [(intent.owner, intent.key, intent.body) for intent in pending]

    async def _forward(self, target: str, holder: str, count: int) -> object:
        return await self.store.outbox.forwarded(target, holder, self.numbers.get(target, [])[:count])

    async def _release(self, target: str, holder: str) -> object:
        await self.store.outbox.release(target, holder)
        return None

    async def _open(self, scope: str, names: list[str], token: str) -> object:
        return plain(await self.store.shards.open(scope, names, token))

    async def _acquire(self, scope: str, names: list[str], token: str) -> object:
        return plain(await self.store.shards.acquire(scope, names, token))

    async def _prune(self, scope: str, count: int) -> object:
        return await self.store.shards.prune(scope, age_seconds=1e6, count_max=count, grace_seconds=0)


def plain(shards: list[Any]) -> list[Any]:
    return [(shard.shard, shard.token, shard.position, shard.done) for shard in shards]


async def contents(store: Store) -> object:
    """Everything that can be read, without changing anything."""
    owners = ["a", "b"]
    names = ["x", "y", "z"]
    keys = [b"", b"k", b"k\xff", b"\xff", b"\x00"]
    return (
        [await store.claim_state(owner) for owner in owners],
        [await store.look(lambda tables, owner=owner: tables.scan(owner, b"k")) for owner in owners],  # type: ignore[misc]
        [await store.look(lambda tables, owner=owner: tables.scan(owner, b"")) for owner in owners],  # type: ignore[misc]
        [await store.seen.known(name, keys) for name in names],
        [plain(await store.shards.all(name)) for name in names],
        [await store.positions(owner) for owner in owners],
        await store.outbox.targets(),
    )


class Ticks:
    """A clock that never shows the same time twice: which of two shards is older is never left to chance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@settings(max_examples=80, deadline=None)
@given(st.lists(steps, max_size=25))
async def test_sqlite_does_what_the_model_does_and_still_has_it_when_reopened(played: list[Any]) -> None:
    model = Player(MemoryStore(clock=Ticks()))
    with tempfile.TemporaryDirectory() as directory:
        async with SqliteStore(StateDatabase.open(Path(directory)), Ticks()) as store:
            player = Player(store)
            for step in played:
                assert (step, await player.take(*step)) == (step, await model.take(*step))
            assert await contents(store) == await contents(model.store)
        async with await SqliteStore.open(Path(directory)) as reopened:
            assert await contents(reopened) == await contents(model.store)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=15))
async def test_postgresql_does_what_the_model_does(shared_database: str, played: list[Any]) -> None:
    model = Player(MemoryStore(clock=Ticks()))
    async with await PostgresStore.open(shared_database) as store:
        with psycopg.connect(shared_database, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {', '.join(f'conduit_py.{table}' for table in TABLES)}")
        player = Player(store)
        for step in played:
            assert (step, await player.take(*step)) == (step, await model.take(*step))
        assert await contents(store) == await contents(model.store)
