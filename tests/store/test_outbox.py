"""The outbox of a store: messages in order, leased target by target, removed when they have arrived."""

from collections.abc import Awaitable, Callable

import trio

from conduit_py.store.claim import Changes, PublishedMessage
from conduit_py.store.store import Store

PassTime = Callable[[float], Awaitable[None]]


async def publish(store: Store, *messages: tuple[str, bytes], owner: str = "orders") -> None:
    claim = await store.claim(owner)
    changes = Changes(
        claim.committed + 1, b"", messages=[PublishedMessage(target, b"key", body) for target, body in messages]
    )
    await claim.commit(changes)


async def lease_messages(store: Store, target: str, holder: str, limit: int = 100) -> list[bytes] | None:
    pending = await store.outbox.lease(target, holder, 10, limit)
    return None if pending is None else [message.body for message in pending]


async def test_messages_come_out_per_target_in_the_order_of_the_commits(store: Store) -> None:
    await publish(store, ("mail", b"1"), ("sms", b"2"), ("mail", b"3"))
    await publish(store, ("mail", b"4"), owner="returns")
    await publish(store, *(("mail", b"%d" % number) for number in range(5, 1000)))

    assert await store.outbox.targets() == ["mail", "sms"]
    assert await lease_messages(store, "mail", "me", 3) == [b"1", b"3", b"4"]
    assert await lease_messages(store, "mail", "me", 2000) == [b"1", *(b"%d" % number for number in range(3, 1000))]
    assert await lease_messages(store, "sms", "me") == [b"2"]


async def test_a_message_says_whose_it_is(store: Store) -> None:
    claim = await store.claim("orders")
    await claim.commit(Changes(1, b"", messages=[PublishedMessage("mail", b"\x00key", b"\xffbody")]))
    pending = await store.outbox.lease("mail", "me", 10, 1)

    assert pending is not None
    [message] = pending
    assert (message.owner, message.target, message.key, message.body) == ("orders", "mail", b"\x00key", b"\xffbody")


async def test_what_arrived_is_gone_and_the_rest_stays(store: Store) -> None:
    await publish(store, ("mail", b"1"), ("mail", b"2"), ("mail", b"3"), ("sms", b"4"))
    pending = await store.outbox.lease("mail", "me", 10, 2)
    assert pending is not None
    removed = await store.outbox.forwarded("mail", "me", [message.number for message in pending])
    again = await store.outbox.forwarded("mail", "me", [message.number for message in pending])

    assert (removed, again) == (True, True)
    assert await lease_messages(store, "mail", "me") == [b"3"]
    assert await lease_messages(store, "sms", "me") == [b"4"]


async def test_me_18_a_leased_target_is_nobody_elses_until_it_is_released(store: Store) -> None:
    await publish(store, ("mail", b"1"), ("sms", b"2"))
    mine = await lease_messages(store, "mail", "me")
    others = await lease_messages(store, "mail", "you")
    other_target = await lease_messages(store, "sms", "you")
    await store.outbox.release("mail", "you")
    still = await lease_messages(store, "mail", "you")
    await store.outbox.release("mail", "me")

    assert (mine, others, other_target, still) == ([b"1"], None, [b"2"], None)
    assert await lease_messages(store, "mail", "you") == [b"1"]


async def test_a_lease_ends_by_itself_and_the_late_holder_removes_nothing(store: Store, pass_time: PassTime) -> None:
    await publish(store, ("mail", b"1"))
    pending = await store.outbox.lease("mail", "late", 10, 1)
    assert pending is not None
    await pass_time(9)
    within = await lease_messages(store, "mail", "me")
    await pass_time(2)
    after = await lease_messages(store, "mail", "me")

    assert (within, after) == (None, [b"1"])
    assert not await store.outbox.forwarded("mail", "late", [pending[0].number])
    assert await lease_messages(store, "mail", "me") == [b"1"]
    assert await lease_messages(store, "mail", "late") is None


async def test_a_lease_may_be_extended_while_it_is_held(store: Store, pass_time: PassTime) -> None:
    await publish(store, ("mail", b"1"))
    await lease_messages(store, "mail", "me")
    for _ in range(3):
        await pass_time(9)
        assert await store.outbox.extend("mail", "me", 10)
        assert await lease_messages(store, "mail", "you") is None


async def test_a_lease_that_was_let_go_of_or_taken_over_cannot_be_extended(store: Store, pass_time: PassTime) -> None:
    await publish(store, ("mail", b"1"))
    await lease_messages(store, "mail", "me")
    await pass_time(11)
    late_but_free = await store.outbox.extend("mail", "me", 10)
    await pass_time(11)
    await lease_messages(store, "mail", "you")
    taken = await store.outbox.extend("mail", "me", 10)
    await store.outbox.release("mail", "you")

    assert (late_but_free, taken) == (True, False)
    assert not await store.outbox.extend("mail", "me", 10)
    assert not await store.outbox.extend("unknown", "me", 10)


async def test_of_many_holders_one_has_the_target(store: Store) -> None:
    await publish(store, ("mail", b"1"))
    holders: list[str] = []

    async def compete(holder: str) -> None:
        if await lease_messages(store, "mail", holder) is not None:
            holders.append(holder)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(compete, f"holder-{number}")

    assert len(holders) == 1


async def test_numbers_are_not_used_again_when_the_outbox_was_empty(store: Store) -> None:
    await publish(store, ("mail", b"1"))
    first = await store.outbox.lease("mail", "me", 10, 1)
    assert first is not None
    await store.outbox.forwarded("mail", "me", [first[0].number])
    await publish(store, ("mail", b"2"))
    second = await store.outbox.lease("mail", "me", 10, 1)

    assert second is not None
    assert second[0].number > first[0].number
