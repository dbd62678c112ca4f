"""HTTP/1.1 on one connection: what it answers, how long it waits, and that it ends when its client is gone."""

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock

from conduit_py.server.http_connection import GONE_SECONDS, HEAD_SECONDS, serve_http
from conduit_py.server.limits import (
    ADMIT,
    CLIENT_BYTES_PER_SECOND,
    CLIENT_READ_SECONDS,
    ConnectionLimit,
    LimitedConnection,
)

HEAD = b"Host: localhost\r\n"
GET = b"GET /a%20b?c=d HTTP/1.1\r\n" + HEAD + b"\r\n"
LAST_GET = b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"


class Recorder:
    """An application that notes what it is asked and answers with the body it was sent."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.received: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body = b""
        while True:
            self.received.append(await receive())
            if self.received[-1]["type"] == "http.disconnect":
                return
            body += self.received[-1].get("body", b"")
            if not self.received[-1].get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers at once, without a look at the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


async def hang(scope: Scope, receive: Receive, send: Send) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def connect(app: ASGIApp) -> AsyncIterator[trio.SocketStream]:
    """The client's end of a connection that the app serves; leaves when the server's end is done with it."""
    ours, theirs = trio.socket.socketpair()
    async with trio.open_nursery() as nursery:

        async def serve(stream: "LimitedConnection | trio.SSLStream[LimitedConnection]") -> None:
            await serve_http(app, stream)

        nursery.start_soon(ConnectionLimit(serve), LimitedConnection(trio.SocketStream(ours)))
        yield trio.SocketStream(theirs)


async def read_all(client: trio.SocketStream) -> bytes:
    return b"".join([bytes(chunk) async for chunk in client])


def statuses(answered: bytes) -> list[bytes]:
    return [part[:3] for part in answered.split(b"HTTP/1.1 ")[1:]]


async def test_requests_one_after_another_on_one_connection(autojump_clock: MockClock) -> None:
    app = Recorder()
    async with connect(app) as client:
        post = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc"
        await client.send_all(GET + post + GET.replace(b"GET", b"HEAD"))
        answered = await read_all(client)
        assert trio.current_time() == HEAD_SECONDS

    assert statuses(answered) == [b"200", b"200", b"200"]
    assert answered.count(b"\r\n\r\nabc") == 1
    assert [scope["method"] for scope in app.scopes] == ["GET", "POST", "HEAD"]
    assert (app.scopes[0]["path"], app.scopes[0]["query_string"]) == ("/a b", b"c=d")


@pytest.mark.parametrize("head", [b"", b"GET / HTT"])
async def test_a_head_that_does_not_come_ends_the_connection(autojump_clock: MockClock, head: bytes) -> None:
    async with connect(hang) as client:
        await client.send_all(head)

        assert await read_all(client) == b""
        assert trio.current_time() == HEAD_SECONDS


async def test_a_client_that_waits_for_it_is_asked_to_send_its_body(autojump_clock: MockClock) -> None:
    async with connect(Recorder()) as client:
        await client.send_all(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(await client.receive_some()) == [b"100"]
        await client.send_all(b"abc")
        assert (await client.receive_some()).endswith(b"\r\n\r\nabc")
        await client.aclose()


async def test_a_body_that_nobody_wanted_is_read_and_the_connection_goes_on(autojump_clock: MockClock) -> None:
    body = b"x" * 200_000
    async with connect(refuse) as client:
        await client.send_all(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET)

        assert statuses(await read_all(client)) == [b"401", b"401"]


async def test_a_body_without_end_that_nobody_wanted_ends_the_connection(autojump_clock: MockClock) -> None:
    async with connect(refuse) as client, trio.open_nursery() as sending:

        async def send_for_ever() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await client.send_all(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")

        await client.send_all(b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sending.start_soon(send_for_ever)
        assert statuses(await client.receive_some()) == [b"401"]


async def test_a_request_ends_after_its_client_is_gone(autojump_clock: MockClock) -> None:
    async with connect(hang) as client:
        await client.send_all(GET)
        await client.aclose()

    assert trio.current_time() == GONE_SECONDS


async def test_a_stream_is_notified_at_once_that_its_client_is_gone(autojump_clock: MockClock) -> None:
    received = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        received.extend([await receive(), await receive()])

    async with connect(listen) as client:
        await client.send_all(GET)
        await client.aclose()

    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]
    assert trio.current_time() == 0


async def test_half_a_body_is_no_request(autojump_clock: MockClock) -> None:
    app = Recorder()
    async with connect(app) as client:
        await client.send_all(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\na")
        await client.aclose()

    assert [message["type"] for message in app.received] == ["http.request", "http.disconnect"]


async def test_a_client_that_reads_nothing_ends_what_it_asked_for(autojump_clock: MockClock) -> None:
    cancelled = []

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        except trio.Cancelled:
            cancelled.append(trio.current_time())
            raise

    async with connect(flood) as client:
        await client.send_all(GET)
        await trio.sleep(100)
        assert cancelled == [CLIENT_READ_SECONDS]
        await client.aclose()


async def test_a_large_answer_that_nobody_reads_is_held_once(autojump_clock: MockClock) -> None:
    answer = b"x" * 20_000_000
    held = []

    async def send_all(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000000")]})
        await send({"type": "http.response.body", "body": answer})

    tracemalloc.start()
    try:
        async with connect(send_all) as client:
            await client.send_all(GET)
            await trio.sleep(CLIENT_READ_SECONDS / 2)
            held.append(tracemalloc.get_traced_memory()[1])
            await client.aclose()
    finally:
        tracemalloc.stop()

    assert held[0] < 5_000_000


async def test_a_large_answer_arrives_whole(autojump_clock: MockClock) -> None:
    answer = bytes(range(256)) * 2000

    async def send_all(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"512000")]})
        await send({"type": "http.response.body", "body": answer})

    async with connect(send_all) as client:
        await client.send_all(LAST_GET)
        head, _, body = (await read_all(client)).partition(b"\r\n\r\n")

    assert statuses(head) == [b"200"]
    assert body == answer


async def test_a_client_that_reads_too_slowly_is_dropped_with_its_answer_half_sent(autojump_clock: MockClock) -> None:
    async def send_all(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"50000000")]})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000})

    async with connect(send_all) as client:
        await client.send_all(GET)
        received = 0
        with suppress(trio.BrokenResourceError):
            while chunk := await client.receive_some(100_000):
                received += len(chunk)
                await trio.sleep(1)

    assert received < 50_000_000
    # What was under way it reads after that, a second for each piece.
    assert trio.current_time() < CLIENT_READ_SECONDS + 50_000_000 / CLIENT_BYTES_PER_SECOND + 20


async def test_a_client_that_reads_slowly_but_steadily_gets_a_large_answer_whole(autojump_clock: MockClock) -> None:
    async def send_all(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8000000")]})
        await send({"type": "http.response.body", "body": b"x" * 8_000_000})

    async with connect(send_all) as client:
        await client.send_all(LAST_GET)
        received = 0
        while chunk := await client.receive_some(CLIENT_BYTES_PER_SECOND):
            received += len(chunk)
            await trio.sleep(len(chunk) / CLIENT_BYTES_PER_SECOND)

    assert received > 8_000_000
    assert trio.current_time() > CLIENT_READ_SECONDS


async def test_an_answer_that_is_cut_short_does_not_look_whole(autojump_clock: MockClock) -> None:
    async def stop_early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with connect(stop_early) as client:
        await client.send_all(GET)
        answered = await read_all(client)

    assert answered.endswith(b"4\r\nhalf\r\n")  # no last chunk


async def test_a_request_counts_as_admitted_when_it_is_complete(autojump_clock: MockClock) -> None:
    seen = []

    async def admit(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][ADMIT]()
        seen.append(connection.admitted)
        await receive()
        await receive()
        seen.append(connection.admitted)
        await refuse(scope, receive, send)

    ours, theirs = trio.socket.socketpair()
    connection, client = LimitedConnection(trio.SocketStream(ours)), trio.SocketStream(theirs)
    await client.send_all(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\n\r\na")
    await serve_http(admit, connection)

    assert seen == [False, True]
    assert not connection.admitted


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"rubbish\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, b"431"),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.0\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
async def test_what_is_no_request_is_answered_once(autojump_clock: MockClock, request_: bytes, status: bytes) -> None:
    async with connect(Recorder()) as client:
        await client.send_all(request_ + GET)
        answered = await read_all(client)
        await client.aclose()

    assert answered.startswith(b"HTTP/1.1 " + status)
    assert statuses(answered) == [status]
    assert b"connection: close" in answered.lower()
