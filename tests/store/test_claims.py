"""Claims and their transactions: fenced, whole, once. The same in every store."""

import pytest
import trio

from conduit_py.child.store import ChildStore
from conduit_py.errors import Fenced, Repeated, StaleToken
from conduit_py.positions import HistoryPoint, PositionHistory
from conduit_py.store.claim import Changes, ClaimState, OutOfStep, PublishedMessage, ShardChange
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store


async def test_gz_f1_every_claim_of_an_owner_has_a_higher_fence_and_the_last_checkpoint(store: Store) -> None:
    first = await store.claim("orders")
    await first.commit(Changes(1, b"one"))
    second = await store.claim("orders")
    other = await store.claim("returns")

    assert (first.fence, first.committed, first.checkpoint) == (1, 1, b"one")
    assert (second.fence, second.committed, second.checkpoint) == (2, 1, b"one")
    assert (other.fence, other.committed, other.checkpoint) == (1, 0, None)


async def test_gz_f1_after_a_newer_claim_an_older_one_commits_nothing(store: Store) -> None:
    zombie = await store.claim("orders")
    await zombie.commit(Changes(1, b"one"))
    owner = await store.claim("orders")
    with pytest.raises(Fenced, match=r"'orders' was claimed again \(fence 2\) after this claim \(fence 1\)"):
        await zombie.commit(Changes(2, b"two", {b"k": b"v"}, [("ids", b"a")], [PublishedMessage("mail", b"a", b"")]))

    assert zombie.committed == 1
    assert await store.claim_state("orders") == ClaimState(2, 1, b"one")
    assert await owner.scan() == []
    assert await owner.seen("ids", [b"a"]) == set()
    assert await store.outbox.targets() == []


async def test_gz_f2_a_fence_that_was_never_given_out_cannot_be_written(store: Store) -> None:
    if isinstance(store, MemoryStore | ChildStore):
        pytest.skip("nobody else can write to it")
    claim = await store.claim("orders")
    with pytest.raises(Exception, match=r"CHECK constraint failed|violates check constraint"):
        await store.transact(lambda tables: tables.sql.run("UPDATE claims SET fence = -1"))  # type: ignore[attr-defined]
    await claim.commit(Changes(1, b"one"))

    assert await store.claim_state("orders") == ClaimState(1, 1, b"one")


async def test_not_even_the_last_transaction_of_a_fenced_claim_is_adopted_again(store: Store) -> None:
    zombie = await store.claim("orders")
    await zombie.commit(Changes(1, b"one"))
    await store.claim("orders")

    with pytest.raises(Fenced):
        await zombie.commit(Changes(1, b"one"))


async def test_to_look_at_a_claim_fences_nobody(store: Store) -> None:
    claim = await store.claim("orders")
    before = await store.claim_state("orders")
    await claim.commit(Changes(1, b"one"))

    assert await store.claim_state("returns") is None
    assert before == ClaimState(1)
    assert await store.claim_state("orders") == ClaimState(1, 1, b"one")


async def test_state_is_put_read_scanned_and_deleted_per_owner(store: Store) -> None:
    orders, returns = await store.claim("orders"), await store.claim("returns")
    await orders.commit(Changes(1, b"", {b"a/1": b"one", b"a/2": b"two", b"b": b"", b"": b"empty"}))
    await returns.commit(Changes(1, b"", {b"a/1": b"other"}))
    await orders.commit(Changes(2, b"", {b"a/1": b"uno", b"b": None, b"never": None, b"a\xff": b"high", b"\xff": b"x"}))

    assert await orders.get(b"a/1") == b"uno"
    assert await orders.get(b"b") is None
    assert await orders.get(b"") == b"empty"
    assert await orders.scan(b"a") == [(b"a/1", b"uno"), (b"a/2", b"two"), (b"a\xff", b"high")]
    assert await orders.scan(b"\xff") == [(b"\xff", b"x")]
    assert [key for key, _ in await orders.scan()] == [b"", b"a/1", b"a/2", b"a\xff", b"\xff"]
    assert await returns.scan(b"a/") == [(b"a/1", b"other")]


async def test_a_part_of_the_state_is_read_by_keys_and_pages_and_measured(store: Store) -> None:
    orders = await store.claim("orders")
    await orders.commit(Changes(1, b"", {f"n\0{number:04}".encode(): b"value" for number in range(1500)}))
    await orders.commit(Changes(2, b"", {b"m\0x": b"1", b"n\0": b"empty", b"n\0\xc3\xa9": b"", b"o": b"2"}))

    def keys(of: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [key for key, _ in of]

    wanted = [f"n\0{number:04}".encode() for number in range(0, 3000, 2)]
    found = await store.look(lambda tables: tables.get_all("orders", wanted))
    assert sorted(found) == [(key, b"value") for key in wanted[:750]]
    assert await store.look(lambda tables: tables.get_all("orders", [])) == []
    assert await store.look(lambda tables: tables.get_all("nobody", wanted)) == []
    first = await store.look(lambda tables: tables.page("orders", b"n\0", b"n\0", 2))
    assert first == [(b"n\0", b"empty"), (b"n\x000000", b"value")]
    last = await store.look(lambda tables: tables.page("orders", b"n\0", b"n\x001499", 9))
    assert keys(last) == [b"n\x001499", b"n\0\xc3\xa9"]
    part = await store.look(lambda tables: tables.page("orders", b"n\x0014", b"n\0", 999))
    assert keys(part) == [f"n\0{number}".encode() for number in range(1400, 1500)]
    assert await orders.measure([b"n\0", b"m\0", b"x\0"]) == [(1502, 1500 * 11 + 7 + 4), (1, 4), (0, 0)]


async def test_a_key_is_seen_once_whoever_records_it_and_the_second_transaction_is_refused_whole(store: Store) -> None:
    orders, returns = await store.claim("orders"), await store.claim("returns")
    await orders.commit(Changes(1, b"one", once=[("ids", b"a"), ("other ids", b"b")]))
    with pytest.raises(Repeated) as repeated:
        await returns.commit(Changes(1, b"", {b"k": b"v"}, [("ids", b"c"), ("ids", b"a")]))

    assert (repeated.value.scope, repeated.value.key) == ("ids", b"a")
    assert await returns.seen("ids", [b"a", b"b", b"c"]) == {b"a"}
    assert await store.claim_state("returns") == ClaimState(1)
    assert await returns.get(b"k") is None


async def test_a_key_twice_in_one_transaction_is_a_repeat(store: Store) -> None:
    claim = await store.claim("orders")
    with pytest.raises(Repeated) as repeated:
        await claim.commit(Changes(1, b"one", once=[("ids", b"a"), ("ids", b"b"), ("ids", b"a")]))

    assert repeated.value.key == b"a"
    assert await claim.seen("ids", [b"a", b"b"]) == set()


async def test_many_keys_are_recorded_and_looked_up_at_once(store: Store) -> None:
    claim = await store.claim("orders")
    keys = [number.to_bytes(16, "big") for number in range(5000)]
    await claim.commit(Changes(1, b"", once=[("ids", key) for key in keys[::2]]))

    assert await claim.seen("ids", keys) == set(keys[::2])


async def test_the_last_transaction_may_be_committed_again_and_changes_nothing(store: Store) -> None:
    claim = await store.claim("orders")
    changes = Changes(1, b"one", {b"k": b"v"}, [("ids", b"a")], [PublishedMessage("mail", b"a", b"hello")])
    await claim.commit(changes)
    await claim.commit(Changes.decode(changes.encode()))
    after_restart = await store.claim("orders")
    await after_restart.commit(changes)

    assert after_restart.committed == 1
    pending = await store.outbox.lease("mail", "me", 1, 10)
    assert pending is not None
    assert [intent.body for intent in pending] == [b"hello"]


@pytest.mark.parametrize(("number", "checkpoint"), [(1, b"another"), (0, b"zero"), (3, b"three")])
async def test_a_number_that_does_not_follow_is_refused(store: Store, number: int, checkpoint: bytes) -> None:
    claim = await store.claim("orders")
    await claim.commit(Changes(1, b"one"))

    with pytest.raises(OutOfStep, match=f"transaction {number} of 'orders' cannot be committed: the last one was 1"):
        await claim.commit(Changes(number, checkpoint))


async def test_a_refused_transaction_leaves_its_number_free_for_the_next(store: Store) -> None:
    claim = await store.claim("orders")
    with pytest.raises(StaleToken):
        await claim.commit(Changes(1, b"", {b"k": b"v"}, shards=[ShardChange("files", "a", "me", b"", b"1")]))
    await claim.commit(Changes(1, b"one"))

    assert (claim.committed, await claim.get(b"k")) == (1, None)


async def test_a_reset_owner_starts_again_with_nobody_able_to_commit(store: Store) -> None:
    before = await store.claim("orders")
    await before.commit(Changes(1, b"one", {b"k": b"v"}, positions={"s": b"5"}))
    await store.save_positions("others", {"s": b"7"})
    await store.reset_claim("orders")
    await store.reset_claim("unknown")
    with pytest.raises(Fenced):
        await before.commit(Changes(2, b"two"))
    after = await store.claim("orders")

    # A number is left out, for another database may have carried the transaction with it.
    assert (after.fence, after.committed, after.checkpoint, await after.scan()) == (3, 2, None, [])
    assert (await store.positions("orders"), await store.positions("others")) == ({}, {"s": b"7"})
    assert await store.claim_state("unknown") is None


async def test_position_histories_commit_with_positions(store: Store) -> None:
    history = PositionHistory([HistoryPoint(1.0, None, start=True), HistoryPoint(2.0, b"5")])
    claim = await store.claim("orders")
    await claim.commit(Changes(1, b"", positions={"s": b"5"}, histories={"s": history.encode()}))

    assert await store.position_history("orders", "s") == history
    assert await store.positions("orders") == {"s": b"5"}
    assert (await store.position_history("others", "s")).points == []


async def test_a_reset_owner_forgets_the_keys_of_its_own_scopes_and_no_others(store: Store) -> None:
    claim = await store.claim("a")
    scopes = ["a/node/ids", "a/", "a", "a0", "ab/node/ids", "ids"]
    await claim.commit(
        Changes(1, b"", once=[(scope, b"k") for scope in scopes], messages=[PublishedMessage("mail", b"", b"1")])
    )
    await store.reset_claim("a")
    left = [scope for scope in scopes if await store.seen.known(scope, [b"k"])]

    assert left == ["a", "a0", "ab/node/ids", "ids"]
    assert await store.outbox.targets() == ["mail"]


async def test_of_many_claims_at_once_the_one_with_the_highest_fence_is_the_owner(store: Store) -> None:
    fences: list[int] = []
    committed: list[int] = []

    async def compete() -> None:
        claim = await store.claim("orders")
        fences.append(claim.fence)
        try:
            await claim.commit(Changes(claim.committed + 1, b"by %d" % claim.fence))
        except Fenced:
            return
        committed.append(claim.fence)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(compete)

    assert sorted(fences) == list(range(1, 21))
    assert 20 in committed
    assert await store.claim_state("orders") == ClaimState(20, len(committed), b"by 20")


def test_changes_can_be_carried_by_another_database() -> None:
    changes = Changes(
        7,
        b"\x00checkpoint",
        {b"": b"", b"\xff": None},
        [("ids", b"\x00")],
        [PublishedMessage("mail", b"k", b"\x80")],
        [ShardChange("files", "a", "me", b"", b"9", True)],
    )

    assert Changes.decode(changes.encode()) == changes


async def test_a_broken_memory_store_commits_nothing() -> None:
    store = MemoryStore()
    claim = await store.claim("orders")
    store.fail_after = store.writes
    with pytest.raises(Exception, match="memory store fails after"):
        await claim.commit(Changes(1, b"one"))
    store.fail_after = None

    assert await store.claim_state("orders") == ClaimState(1)


def test_position_histories_stand_on_disks_under_their_first_name() -> None:
    changes = Changes(1, b"", histories={"s": b"points"})

    assert b"\xa6trails\x81\xa1s\xc4\x06points" in changes.encode()
    assert Changes.decode(changes.encode()) == changes


def test_messages_of_the_outbox_have_their_old_name_in_what_is_written() -> None:
    changes = Changes(1, b"", messages=[PublishedMessage("mail", b"k", b"body")])

    assert b"\xa7intents\x91\x83\xa6target\xa4mail" in changes.encode()
    assert Changes.decode(changes.encode()) == changes
