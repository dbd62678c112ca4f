"""Keys that were recorded as seen, outside of transactions too, and forgotten when they are old."""

from collections.abc import Awaitable, Callable

import trio

from conduit_py.store.claim import Changes
from conduit_py.store.store import Store

PassTime = Callable[[float], Awaitable[None]]


async def test_a_key_that_was_recorded_is_known_in_its_scope_only(store: Store) -> None:
    repeated = [
        await store.seen.remember("ids", [b"a", b"b"]),
        await store.seen.remember("ids", [b"c", b"b"]),
        await store.seen.remember("ids", []),
    ]

    assert repeated == [set(), {b"b"}, set()]
    assert await store.seen.known("ids", [b"a", b"b", b"c", b"d"]) == {b"a", b"b", b"c"}
    assert await store.seen.known("other ids", [b"a"]) == set()


async def test_what_a_transaction_recorded_is_known_outside_and_the_other_way_round(store: Store) -> None:
    claim = await store.claim("orders")
    await store.seen.remember("ids", [b"a"])
    await claim.commit(Changes(1, b"", once=[("ids", b"b")]))

    assert await claim.seen("ids", [b"a", b"b"]) == {b"a", b"b"}
    assert await store.seen.remember("ids", [b"b"]) == {b"b"}


async def test_of_many_who_record_the_same_key_one_is_first(store: Store) -> None:
    first: list[int] = []

    async def compete(number: int) -> None:
        if b"a" not in await store.seen.remember("ids", [b"a", b"%d" % number]):
            first.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(compete, number)

    assert len(first) == 1
    assert len(await store.seen.known("ids", [b"%d" % number for number in range(20)])) == 20


async def test_old_keys_are_forgotten_and_young_ones_stay(store: Store, pass_time: PassTime) -> None:
    await store.seen.remember("ids", [b"old %d" % number for number in range(100)])
    await store.seen.remember("other ids", [b"old"])
    await pass_time(100)
    await store.seen.remember("ids", [b"young"])
    await pass_time(50)
    forgotten = [await store.seen.forget("ids", 151), await store.seen.forget("ids", 149)]

    assert forgotten == [0, 100]
    assert await store.seen.known("ids", [b"old 7", b"young"]) == {b"young"}
    assert await store.seen.known("other ids", [b"old"]) == {b"old"}
    assert await store.seen.forget("ids", 49) == 1
    assert await store.seen.forget("ids", 0) == 0


async def test_what_was_forgotten_may_be_recorded_again(store: Store, pass_time: PassTime) -> None:
    claim = await store.claim("orders")
    await claim.commit(Changes(1, b"", once=[("ids", b"a")]))
    await pass_time(10)
    await store.seen.forget("ids", 5)
    await claim.commit(Changes(2, b"", once=[("ids", b"a")]))

    assert await store.seen.known("ids", [b"a"]) == {b"a"}


async def test_more_keys_than_one_step_takes_are_forgotten(store: Store, pass_time: PassTime) -> None:
    await store.seen.remember("ids", [number.to_bytes(4, "big") for number in range(25_000)])
    await pass_time(10)

    assert await store.seen.forget("ids", 5) == 25_000
