"""Connections with limits: so many, so patient, and none a danger to the others."""

import logging

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from conduit_py.server.limits import (
    CLIENT_READ_SECONDS,
    LINGER_SECONDS,
    REPORT_SECONDS,
    ConnectionLimit,
    LimitedConnection,
    Stream,
)


def pair() -> tuple[LimitedConnection, trio.SocketStream]:
    ours, theirs = trio.socket.socketpair()
    return LimitedConnection(trio.SocketStream(ours)), trio.SocketStream(theirs)


async def test_a_peer_that_reads_nothing_is_dropped_even_from_within_a_shield(autojump_clock: MockClock) -> None:
    connection, peer = pair()
    async with peer:
        with trio.CancelScope(shield=True), pytest.raises(trio.BrokenResourceError):
            await connection.send_all(b"x" * 50_000_000)
        assert trio.current_time() == CLIENT_READ_SECONDS
        with pytest.raises(trio.ClosedResourceError):
            await connection.send_all(b"x")


async def test_one_connection_too_many_is_closed_until_another_has_ended(autojump_clock: MockClock) -> None:
    async def greet(stream: Stream) -> None:
        assert isinstance(stream, LimitedConnection)
        stream.admitted = True
        await stream.send_all(b"hello")
        await stream.receive_some(1)

    door = ConnectionLimit(greet, connections_max=2)
    async with trio.open_nursery() as nursery:
        peers = []
        for _ in range(3):
            connection, peer = pair()
            nursery.start_soon(door, connection)
            await trio.testing.wait_all_tasks_blocked()
            peers.append(peer)
        assert [await peer.receive_some(5) for peer in peers] == [b"hello", b"hello", b""]
        await peers[0].send_all(b"x")
        assert await peers[0].receive_some(5) == b""
        connection, peer = pair()
        nursery.start_soon(door, connection)
        assert await peer.receive_some(5) == b"hello"
        for each in (*peers, peer):
            await each.aclose()


async def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(autojump_clock: MockClock) -> None:
    async def greet(stream: Stream) -> None:
        await stream.send_all(b"hello")
        await trio.sleep_forever()

    door = ConnectionLimit(greet, connections_max=3)
    async with trio.open_nursery() as nursery:
        pairs = []
        for number in range(5):
            # Made one after another: of two that wait equally long, either may make way.
            connection, peer = pair()
            pairs.append((connection, peer))
            nursery.start_soon(door, connection)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            if number == 0:
                connection.admitted = True

        assert [await peer.receive_some(5) for _, peer in pairs] == [b"hello"] * 5
        # The first stays: its request was let in. The second and third make way.
        with trio.move_on_after(1):
            await pairs[0][1].receive_some(5)
        assert [await peer.receive_some(5) for _, peer in pairs[1:3]] == [b"", b""]
        assert [connection.scope.cancel_called for connection, _ in pairs] == [False, True, True, False, False]
        nursery.cancel_scope.cancel()


async def test_failures_of_connections_fill_no_log(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(stream: Stream) -> None:
        raise ZeroDivisionError

    door = ConnectionLimit(fail)
    with caplog.at_level(logging.ERROR, "conduit_py.server"):
        for _ in range(100):
            await door(pair()[0])
        await trio.sleep(REPORT_SECONDS)
        await door(pair()[0])

    assert [record.getMessage().partition("(")[2] for record in caplog.records] == ["1 so far)", "101 so far)"]


async def test_a_connection_that_fails_is_logged_and_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(stream: Stream) -> None:
        raise ZeroDivisionError

    connection, peer = pair()
    with caplog.at_level(logging.ERROR, "conduit_py.server"):
        await ConnectionLimit(fail)(connection)

    assert await peer.receive_some(5) == b""
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


async def test_nobody_waits_for_a_protocol_that_goes_on_after_its_connection_is_closed(
    autojump_clock: MockClock,
) -> None:
    async def wait_for_nobody(stream: Stream) -> None:
        await stream.aclose()
        await trio.sleep_forever()

    connection, _ = pair()
    await ConnectionLimit(wait_for_nobody)(connection)

    assert trio.current_time() == LINGER_SECONDS
