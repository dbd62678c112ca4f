"""Progress of leased work as a chain of changes (vectors QW-K1 to QW-K6, which others keep as checkpoint deltas)."""

import pytest

from conduit_py.errors import StaleToken
from conduit_py.queue.message_body import end_point, point_at
from conduit_py.store.claim import Changes, ShardChange
from conduit_py.store.store import Store


def change(shard: str, start: bytes, stop: bytes, *, done: bool = False) -> ShardChange:
    return ShardChange("files", shard, "mine", start, stop, done)


async def commit(store: Store, *changes: ShardChange) -> None:
    claim = await store.claim("orders")
    await claim.commit(Changes(claim.committed + 1, b"", shards=list(changes)))


async def positions(store: Store) -> dict[str, bytes]:
    return {shard.shard: shard.position for shard in await store.shards.all("files")}


async def test_qw_k1_changes_chain_from_transaction_to_transaction(store: Store) -> None:
    await store.shards.open("files", ["a", "b"], "mine")

    await commit(store, change("a", b"", point_at(5)), change("b", b"", point_at(2)))
    await commit(store, change("a", point_at(5), point_at(9)), change("b", point_at(2), end_point(4), done=True))

    assert await positions(store) == {"a": point_at(9), "b": end_point(4)}


async def test_qw_k2_a_change_counts_once(store: Store) -> None:
    await store.shards.open("files", ["a"], "mine")
    await commit(store, change("a", b"", point_at(5)))

    with pytest.raises(StaleToken):
        await commit(store, change("a", b"", point_at(5)))

    assert await positions(store) == {"a": point_at(5)}


async def test_qw_k3_one_change_that_does_not_fit_keeps_all_from_being_made(store: Store) -> None:
    await store.shards.open("files", ["a", "b"], "mine")
    await commit(store, change("a", b"", point_at(5)))

    with pytest.raises(StaleToken):
        await commit(store, change("b", b"", point_at(7)), change("a", point_at(4), point_at(8)))

    assert await positions(store) == {"a": point_at(5), "b": b""}


async def test_qw_k4_work_that_came_later_joins_what_is_there(store: Store) -> None:
    await store.shards.open("files", ["a"], "mine")
    await commit(store, change("a", b"", point_at(5)))
    await store.shards.open("files", ["b"], "mine")

    await commit(store, change("a", point_at(5), point_at(6)), change("b", b"", point_at(1)))

    assert await positions(store) == {"a": point_at(6), "b": point_at(1)}


async def test_qw_k5_changes_of_one_transaction_chain_too_and_may_not_overlap(store: Store) -> None:
    await store.shards.open("files", ["a"], "mine")

    with pytest.raises(StaleToken):
        await commit(store, change("a", b"", point_at(5)), change("a", point_at(4), point_at(9)))
    await commit(store, change("a", b"", point_at(5)), change("a", point_at(5), point_at(9)))

    assert await positions(store) == {"a": point_at(9)}


@pytest.mark.parametrize(
    ("start", "stop"), [(point_at(5), point_at(5)), (point_at(5), point_at(4)), (end_point(5), point_at(6))]
)
def test_qw_k6_there_is_no_change_without_progress(start: bytes, stop: bytes) -> None:
    with pytest.raises(AssertionError, match="no progress of 'a'"):
        change("a", start, stop)
