"""Pieces of leased work: opened, acquired, advanced within transactions, pruned (vectors QW-*)."""

from collections.abc import Awaitable, Callable

import pytest

from conduit_py.errors import StaleToken
from conduit_py.store.claim import Changes, ShardChange
from conduit_py.store.store import Store
from conduit_py.store.tables import ShardState

PassTime = Callable[[float], Awaitable[None]]


def plain(shards: list[ShardState]) -> list[tuple[str, str, bytes, bool]]:
    return [(shard.shard, shard.token, shard.position, shard.done) for shard in shards]


async def advance(store: Store, *changes: ShardChange) -> None:
    claim = await store.claim("orders")
    await claim.commit(Changes(claim.committed + 1, b"", shards=list(changes)))


async def test_qw_o1_opening_is_idempotent_and_the_first_caller_wins(store: Store) -> None:
    [first] = await store.shards.open("files", ["b"], "mine")
    both = await store.shards.open("files", ["b", "a"], "yours")

    assert plain(both) == [("b", "mine", b"", False), ("a", "yours", b"", False)]
    assert both[0].updated == first.updated
    assert await store.shards.all("files") == [both[1], both[0]]
    assert await store.shards.all("other files") == []


async def test_qw_a1_acquiring_takes_what_is_idle_and_leaves_out_what_is_missing(
    store: Store, pass_time: PassTime
) -> None:
    await store.shards.open("files", ["a", "b"], "mine")
    recent = await store.shards.acquire("files", ["a"], "yours", idle_seconds=60)
    await pass_time(61)
    idle = await store.shards.acquire("files", ["missing", "b", "a"], "yours", idle_seconds=60)
    bumped = await store.shards.acquire("files", ["a"], "theirs", idle_seconds=60)
    forced = await store.shards.acquire("files", ["a"], "theirs")

    assert recent == []
    assert plain(idle) == [("b", "yours", b"", False), ("a", "yours", b"", False)]
    assert bumped == []
    assert plain(forced) == [("a", "theirs", b"", False)]


async def test_what_is_done_cannot_be_acquired(store: Store) -> None:
    await store.shards.open("files", ["a"], "mine")
    await advance(store, ShardChange("files", "a", "mine", b"", b"9", True))

    assert await store.shards.acquire("files", ["a"], "yours") == []
    assert plain(await store.shards.all("files")) == [("a", "mine", b"9", True)]


async def test_qw_d1_progress_needs_the_shard_the_token_and_the_position(store: Store) -> None:
    first = ShardChange("files", "a", "mine", b"", b"0")
    with pytest.raises(StaleToken, match="shard 'a' of 'files' does not exist any more; nothing was committed"):
        await advance(store, first)
    await store.shards.open("files", ["a"], "mine")
    with pytest.raises(StaleToken, match="was acquired by 'mine'"):
        await advance(store, ShardChange("files", "a", "yours", b"", b"0"))
    await advance(store, first)
    with pytest.raises(StaleToken, match="has come to b'0', past b''"):
        await advance(store, first)
    half = plain(await store.shards.all("files"))
    await advance(store, ShardChange("files", "a", "mine", b"0", b"1", True))
    with pytest.raises(StaleToken, match="is finished already"):
        await advance(store, ShardChange("files", "a", "mine", b"1", b"2"))

    assert half == [("a", "mine", b"0", False)]
    assert plain(await store.shards.all("files")) == [("a", "mine", b"1", True)]


async def test_qw_d2_several_shards_advance_together_or_not_at_all(store: Store, pass_time: PassTime) -> None:
    await store.shards.open("files", ["a", "b", "c"], "mine")
    await store.shards.open("files", ["d"], "theirs")
    await pass_time(10)
    changes = [ShardChange("files", name, "mine", b"", b"5") for name in "abc"]
    with pytest.raises(StaleToken):
        await advance(store, *changes, ShardChange("files", "d", "mine", b"", b"5"))
    untouched = await store.shards.all("files")
    await advance(store, *changes)
    after = await store.shards.all("files")

    assert [shard.position for shard in untouched] == [b""] * 4
    assert [shard.position for shard in after] == [b"5", b"5", b"5", b""]
    assert after[3] == untouched[3]
    assert after[0].updated > untouched[0].updated + 9


async def test_changes_of_one_shard_follow_each_other_in_one_transaction(store: Store) -> None:
    await store.shards.open("files", ["a"], "mine")
    await advance(
        store,
        ShardChange("files", "a", "mine", b"", b"1"),
        ShardChange("files", "a", "mine", b"1", b"2"),
        ShardChange("files", "a", "mine", b"7", b"8", True),
    )

    assert plain(await store.shards.all("files")) == [("a", "mine", b"8", True)]


async def test_qw_n1_of_two_who_acquire_the_same_shard_the_loser_commits_nothing(
    store: Store, pass_time: PassTime
) -> None:
    loser, winner = await store.claim("loser"), await store.claim("winner")
    await store.shards.open("files", ["a"], "gone")
    await pass_time(100)
    await store.shards.acquire("files", ["a"], "loser", idle_seconds=60)
    await pass_time(100)
    await store.shards.acquire("files", ["a"], "winner", idle_seconds=60)
    await winner.commit(Changes(1, b"", {b"out": b"x"}, shards=[ShardChange("files", "a", "winner", b"", b"9", True)]))
    with pytest.raises(StaleToken):
        await loser.commit(
            Changes(1, b"", {b"out": b"x"}, shards=[ShardChange("files", "a", "loser", b"", b"9", True)])
        )

    assert await loser.get(b"out") is None
    assert await winner.get(b"out") == b"x"


async def test_qw_p1_old_shards_and_those_beyond_the_count_are_forgotten(store: Store, pass_time: PassTime) -> None:
    for number in range(100):
        await store.shards.open("files", [f"{number:03}"], "mine")
        await pass_time(100)
    await store.shards.open("other files", ["a"], "mine")
    # 100 rows, 100 s apart, the oldest 10 000 s old. Each step leaves what it would leave of all of them.
    steps = [(100_000, 1000), (9650, 1000), (100_000, 90), (7050, 80), (6000, 50), (100_000, 0)]
    left: list[tuple[int, str | None]] = []
    for age, count in steps:
        await store.shards.prune("files", age_seconds=age, count_max=count, grace_seconds=0)
        names = [shard.shard for shard in await store.shards.all("files")]
        left.append((len(names), names[0] if names else None))

    assert left == [(100, "000"), (96, "004"), (90, "010"), (70, "030"), (50, "050"), (0, None)]
    assert len(await store.shards.all("other files")) == 1


async def test_qw_n4_unfinished_work_younger_than_its_grace_is_kept_whatever_else_is_asked(
    store: Store, pass_time: PassTime
) -> None:
    await store.shards.open("files", ["done", "unfinished"], "mine")
    await advance(store, ShardChange("files", "done", "mine", b"", b"9", True))
    await pass_time(100)
    pruned = await store.shards.prune("files", age_seconds=10, count_max=0, grace_seconds=120)
    kept = plain(await store.shards.all("files"))
    await pass_time(100)
    pruned_later = await store.shards.prune("files", age_seconds=10, count_max=0, grace_seconds=120)

    assert (pruned, kept) == (1, [("unfinished", "mine", b"", False)])
    assert pruned_later == 1
