"""The forwarder: order per target, leases, retries, its end (vectors ME-07 to ME-09, ME-17, ME-18)."""

import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
import trio
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from trio.testing import MockClock

from conduit_py.backoff import Backoff
from conduit_py.errors import StateFailed
from conduit_py.outbox.forwarder import Forwarder, Outbox
from conduit_py.outbox.sqlalchemy_outbox import SqlAlchemyOutbox
from conduit_py.store.claim import Changes, PublishedMessage
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.store.tables import OutboxMessage

Add = Callable[..., Awaitable[None]]
STEADY = Backoff(delay_seconds=10, delay_max_seconds=40)


class Box(Protocol):
    """An outbox with a way to put messages in."""

    outbox: Outbox

    async def add(self, *messages: tuple[str, bytes]) -> None: ...


class StoreBox:
    def __init__(self, store: Store) -> None:
        self.outbox: Outbox = store.outbox
        self._store = store

    async def add(self, *messages: tuple[str, bytes]) -> None:
        claim = await self._store.claim("orders")
        published = [PublishedMessage(target, b"key " + body, body) for target, body in messages]
        await claim.commit(Changes(claim.committed + 1, b"", messages=published))


class SqlBox:
    def __init__(self, engine: Engine) -> None:
        self._sql = SqlAlchemyOutbox(engine)
        self.outbox: Outbox = self._sql
        self._engine = engine
        self._sql.create()
        self._sql.create()

    async def add(self, *messages: tuple[str, bytes]) -> None:
        with Session(self._engine) as session, session.begin():
            for target, body in messages:
                self._sql.add(session, target, body, key=b"key " + body)
        await trio.lowlevel.checkpoint()


@pytest.fixture(params=["store", "sqlite", "postgresql"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Box]:
    if request.param == "store":
        async with await SqliteStore.open(tmp_path) as store:
            yield StoreBox(store)
        return
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
    else:
        engine = create_engine(request.getfixturevalue("postgres").replace("postgresql:", "postgresql+psycopg:"))
    yield SqlBox(engine)
    engine.dispose()


class Receiver:
    """Takes messages; those whose body is in `refusing` are refused as often as it says."""

    def __init__(self, refusing: dict[bytes, int] | None = None) -> None:
        self.got: list[OutboxMessage] = []
        self.at: list[float] = []
        self._refusing = refusing or {}

    async def send(self, message: OutboxMessage) -> None:
        await trio.lowlevel.checkpoint()
        if self._refusing.get(message.body, 0):
            self._refusing[message.body] -= 1
            raise OSError("busy")
        self.got.append(message)
        self.at.append(trio.current_time())

    def bodies(self, target: str | None = None) -> list[bytes]:
        return [message.body for message in self.got if target in (None, message.target)]


async def test_me_08_messages_are_sent_in_the_order_saved_and_are_gone_then(box: Box) -> None:
    receiver = Receiver()
    await box.add(*(("mail", b"%d" % number) for number in range(250)), ("sms", b"x"))
    await box.add(("mail", b"last"))
    arrived = await Forwarder(box.outbox, receiver.send).drain()
    again = await Forwarder(box.outbox, receiver.send).drain()

    assert (arrived, again) == (252, 0)
    assert receiver.bodies("mail") == [*(b"%d" % number for number in range(250)), b"last"]
    assert receiver.bodies("sms") == [b"x"]
    assert receiver.got[0].key == b"key " + receiver.got[0].body
    assert await box.outbox.targets() == []


async def test_me_08_an_empty_outbox_is_left_alone(box: Box) -> None:
    assert await Forwarder(box.outbox, Receiver().send).drain() == 0


async def test_a_send_that_is_not_async_is_called_in_a_thread(box: Box) -> None:
    threads: list[int] = []
    await box.add(("mail", b"1"))
    await Forwarder(box.outbox, lambda message: threads.append(threading.get_ident())).drain()

    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_me_07_me_09_nothing_is_seen_before_the_commit_and_all_of_it_after(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    outbox, receiver = SqlAlchemyOutbox(engine), Receiver()
    outbox.create()
    forwarder = Forwarder(outbox, receiver.send)
    with Session(engine) as session:
        for body in (b"1", b"2"):
            outbox.add(session, "mail", body)
        before = await forwarder.drain()
        session.commit()
    after = await forwarder.drain()
    with Session(engine) as session:
        outbox.add(session, "mail", b"3")
        session.rollback()

    assert (before, after, await forwarder.drain()) == (0, 2, 0)
    assert receiver.bodies() == [b"1", b"2"]
    assert receiver.got[0].key != receiver.got[1].key
    engine.dispose()


async def test_a_message_that_does_not_arrive_holds_up_its_own_target_only(autojump_clock: MockClock) -> None:
    box, receiver = StoreBox(MemoryStore()), Receiver({b"2": 3})
    await box.add(("mail", b"1"), ("mail", b"2"), ("mail", b"3"), ("sms", b"4"))
    forwarder = Forwarder(box.outbox, receiver.send, delays=STEADY, rng=random.Random(1))
    with trio.move_on_after(5):
        await forwarder.run()
    trouble = forwarder.failing["mail"]
    at_first = receiver.bodies()
    with trio.move_on_after(100):
        await forwarder.run()

    assert sorted(at_first) == [b"1", b"4"]
    assert (trouble.attempts, trouble.error) == (1, "OSError: busy")
    assert receiver.bodies("mail") == [b"1", b"2", b"3"]
    assert forwarder.failing == {}
    # Three refusals: pauses of up to 10, 20 and 40 seconds, of which chance takes up to half.
    assert 35 <= receiver.at[-1] <= 75


async def test_me_13_the_pauses_begin_anew_once_a_message_has_arrived(autojump_clock: MockClock) -> None:
    box, receiver = StoreBox(MemoryStore()), Receiver({b"1": 2, b"2": 1})
    await box.add(("mail", b"1"), ("mail", b"2"))
    forwarder = Forwarder(box.outbox, receiver.send, delays=STEADY, rng=random.Random(1))
    with trio.move_on_after(100):
        await forwarder.run()

    assert receiver.bodies() == [b"1", b"2"]
    assert receiver.at[1] - receiver.at[0] <= 11


async def test_new_messages_are_looked_for_every_period(autojump_clock: MockClock) -> None:
    box, receiver = StoreBox(MemoryStore()), Receiver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Forwarder(box.outbox, receiver.send, period_seconds=60).run)
        await trio.sleep(90)
        await box.add(("mail", b"1"))
        await trio.sleep(60)
        nursery.cancel_scope.cancel()

    assert receiver.at == [120]


async def test_a_forwarder_may_be_given_the_targets_that_are_its_own(box: Box) -> None:
    receiver = Receiver()
    await box.add(("mail", b"1"), ("sms", b"2"))
    await Forwarder(box.outbox, receiver.send, targets=["sms"]).drain()

    assert receiver.bodies() == [b"2"]


async def test_me_18_forwarders_share_the_targets_and_each_message_is_sent_by_one_in_order(box: Box) -> None:
    receiver = Receiver()
    for number in range(30):
        await box.add(*((f"target-{target}", b"%d" % number) for target in range(5)))
    forwarders = [Forwarder(box.outbox, receiver.send, batch_size=7) for _ in range(3)]

    async def drain_all(forwarder: Forwarder) -> None:
        while await box.outbox.targets():
            await forwarder.drain()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            for forwarder in forwarders:
                nursery.start_soon(drain_all, forwarder)

    for target in range(5):
        assert receiver.bodies(f"target-{target}") == [b"%d" % number for number in range(30)]


async def test_a_lease_is_extended_while_a_message_is_being_sent(autojump_clock: MockClock) -> None:
    box = StoreBox(MemoryStore())
    await box.add(("mail", b"slow"), ("mail", b"next"))
    sent: list[bytes] = []

    async def slowly(message: OutboxMessage) -> None:
        await trio.sleep(1000)
        sent.append(message.body)

    other = Receiver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Forwarder(box.outbox, slowly, lease_seconds=30).drain)
        for _ in range(20):
            await trio.sleep(100)
            await Forwarder(box.outbox, other.send).drain()

    assert (sent, other.bodies()) == ([b"slow", b"next"], [])


async def test_a_forwarder_that_loses_its_lease_stops_and_removes_nothing(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    box = StoreBox(store)
    await box.add(("mail", b"1"), ("mail", b"2"))
    started: list[bytes] = []

    async def stuck(message: OutboxMessage) -> None:
        started.append(message.body)
        await trio.sleep_forever()

    frozen = Forwarder(box.outbox, stuck, lease_seconds=30)
    receiver = Receiver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frozen.drain)
        await trio.sleep(1)
        # As if it had been frozen for longer than its lease, and another had taken over meanwhile.
        await box.outbox.release("mail", frozen.holder)
        arrived = await Forwarder(box.outbox, receiver.send).drain()

    assert (arrived, receiver.bodies(), started) == (2, [b"1", b"2"], [b"1"])


async def test_what_was_sent_when_a_forwarder_is_asked_to_end_is_not_sent_again(autojump_clock: MockClock) -> None:
    box = StoreBox(MemoryStore())
    await box.add(("mail", b"1"), ("mail", b"2"), ("mail", b"3"))
    receiver = Receiver()

    async def slowly(message: OutboxMessage) -> None:
        await trio.sleep(10)
        await receiver.send(message)

    with trio.move_on_after(25):
        await Forwarder(box.outbox, slowly).drain()
    after_stop = receiver.bodies()
    with trio.move_on_after(60):
        await Forwarder(box.outbox, receiver.send).run()

    assert after_stop == [b"1", b"2"]
    assert receiver.bodies() == [b"1", b"2", b"3"]


async def test_an_outbox_that_cannot_be_reached_is_tried_again(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    box, receiver = StoreBox(store), Receiver()
    await box.add(("mail", b"1"))
    store.fail_after = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Forwarder(box.outbox, receiver.send, delays=STEADY).run)
        await trio.sleep(5)
        store.fail_after = None
        await trio.sleep(100)
        nursery.cancel_scope.cancel()

    assert receiver.bodies() == [b"1"]


async def test_errors_of_the_users_database_are_ours_to_retry(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with pytest.raises(StateFailed, match="the outbox 'conduit_outbox' failed: no such table"):
        await SqlAlchemyOutbox(engine).targets()
    engine.dispose()


def test_an_application_without_an_event_loop_runs_it_in_a_thread(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
    outbox = SqlAlchemyOutbox(engine)
    outbox.create()
    arrived = threading.Event()
    forwarder = Forwarder(outbox, lambda message: arrived.set(), period_seconds=0.05)
    threading.Thread(target=forwarder.run_blocking, daemon=True).start()
    with Session(engine) as session, session.begin():
        outbox.add(session, "mail", b"1")

    assert arrived.wait(300)
