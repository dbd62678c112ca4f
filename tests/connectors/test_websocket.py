"""The WebSocket source and a server that sends, hangs up, is shut down or killed, and starts again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import memory, websocket
from connector_examples import load_example, run_until
from waiting import until
from websocket_feed import PADDING, FeedServer
from websockets.sync.server import ServerConnection, serve

import conduit_py
from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.record import Record
from conduit_py.sdk import FatalError, TransientError
from conduit_py.status import Status
from conduit_py.testing import source_acceptance
from conduit_py.testing.server_process import free_port


class Peer:
    """A server that calls a function for each client."""

    def __init__(self, talk: Callable[[ServerConnection], None], port: int | None = None) -> None:
        self.port = port or free_port()
        self._server = serve(talk, "127.0.0.1", self.port)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/feed?token=hush-hush-4711"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


@contextmanager
def serving(talk: Callable[[ServerConnection], None]) -> Iterator[Peer]:
    peer = Peer(talk)
    try:
        yield peer
    finally:
        peer.close()


def send_and_wait(*messages: str | bytes) -> Callable[[ServerConnection], None]:
    def talk(connection: ServerConnection) -> None:
        for message in messages:
            connection.send(message)
        # Until the client leaves.
        for _ in connection:
            pass

    return talk


def five_messages() -> Iterator[websocket.Source]:
    with serving(send_and_wait(*(b"%d" % number for number in range(5)))) as peer:
        yield websocket.Source(url=peer.url)


TestSource = source_acceptance(five_messages, records=5)


def opened(peer: Peer, **options: Any) -> websocket.Source:
    source = websocket.Source(url=peer.url, **options).fresh()
    source.open(None)
    return source


def read(source: websocket.Source, count: int) -> list[tuple[Any, str | None]]:
    found: list[tuple[Any, str | None]] = []
    while len(found) < count:
        reading = source.read(count - len(found))
        assert isinstance(reading.records, list)
        found += [(each.payload.after, reading.refused.get(index)) for index, each in enumerate(reading.records)]
    source.teardown()
    return found


def test_what_is_no_json_object_is_refused_with_its_bytes() -> None:
    with serving(send_and_wait('{"n": 1}', "[1]", "no", b'{"n": 2}', "[" * 5000)) as peer:
        found = read(opened(peer, format="json"), 5)

    assert [after for after, _ in found] == [{"n": 1}, b"[1]", b"no", {"n": 2}, b"[" * 5000]
    assert [why is None for _, why in found] == [True, False, False, True, False]
    assert found[1][1] == "is JSON, but no object"


def test_headers_and_messages_are_sent_after_each_handshake() -> None:
    received: list[tuple[str, str | bytes]] = []

    def talk(connection: ServerConnection) -> None:
        assert connection.request is not None
        received.append((connection.request.headers["x-key"], connection.recv()))
        connection.send(b"%d" % len(received))

    with serving(talk) as peer:
        found = read(opened(peer, headers={"x-key": "k"}, send=["subscribe"]), 3)

    # It hangs up after each.
    assert [after for after, _ in found] == [b"1", b"2", b"3"]
    assert received[:3] == [("k", "subscribe")] * 3


def test_a_slow_pipeline_makes_the_server_wait() -> None:
    sent = 0

    def talk(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(300):
            connection.send(b"x" * 100_000)
            sent += 1

    with serving(talk) as peer:
        source = opened(peer)
        source.read(1)
        before = -1
        # Until it stands still: what is in sockets and queues is all that was sent.
        while sent != before:
            before = sent
            threading.Event().wait(0.3)
        assert sent < 300
        assert len(read(source, 299)) == 299


def test_what_is_wrong_is_said_without_the_token_and_whether_waiting_helps() -> None:
    with serving(send_and_wait(b"x" * 2000)) as peer:
        source = opened(peer, message_size_max=1000)
        with pytest.raises(TransientError, match="sent more than 1000 bytes at once") as raised:
            source.read(1)
        assert "hush-hush" not in str(raised.value)
        source.teardown()
        assert websocket.Source(url=peer.url).probe() == "the server accepts the handshake"
    with pytest.raises(TransientError, match=r"the WebSocket server ws://127.0.0.1:\d+/feed: ") as refused:
        opened(peer)
    assert "hush-hush" not in str(refused.value)
    with pytest.raises(FatalError, match="certificates for WebSocket cannot be used"):
        websocket.Source(url="wss://localhost", ca_file="/nowhere/ca.pem").open(None)
    assert websocket.Source(url="http://localhost").problems


async def test_a_server_that_is_shut_down_and_starts_again_is_read_on(tmp_path: Path) -> None:
    into: list[Record] = []
    peer = Peer(send_and_wait(b"first"))
    pipeline = reading(websocket.Source(url=peer.url), into)
    async with conduit_py.running(pipeline, state=tmp_path / "state"):
        await until(lambda: len(into) == 1)
        peer.close()
        peer = Peer(send_and_wait(b"second"), peer.port)
        await until(lambda: len(into) >= 2)
    peer.close()

    assert [each.payload.after for each in into[:2]] == [b"first", b"second"]


async def test_a_server_killed_with_kill_9_is_read_on_and_what_came_is_there_once_and_in_order(tmp_path: Path) -> None:
    into: list[Record] = []
    lives = 3
    with FeedServer.started() as server:
        source = websocket.Source(url=server.url, send=["subscribe"], format="json")
        async with conduit_py.running(reading(source, into), state=tmp_path / "state") as run:
            for life in range(1, lives + 1):
                # Some tens of messages are on their way when it is killed.
                await until(partial(came, into, life))
                await trio.to_thread.run_sync(server.kill)
                if life < lives:
                    await trio.to_thread.run_sync(server.start)
            assert run.status in (Status.RUNNING, Status.RECOVERING)

    found = [numbers(into, life) for life in range(1, lives + 1)]
    # Of each life the beginning, without a gap; what was sent last is lost. A message that was cut off is no record.
    assert found == [list(range(len(each))) for each in found]
    assert [each.payload["life"] for each in into] == sorted(each.payload["life"] for each in into)
    assert all(each.payload["padding"] == PADDING for each in into)


def reading(source: websocket.Source, into: list[Record]) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("feed", source)],
        destinations=[Destination("out", memory.Destination(into=into))],
        recovery=Recovery(delay_seconds=0.1, delay_max_seconds=0.5),
    )


def came(into: list[Record], life: int) -> bool:
    return len(numbers(into, life)) >= 50


def numbers(into: list[Record], life: int) -> list[int]:
    """What one life of the server sent, as it came."""
    return [each.payload["n"] for each in into if each.payload["life"] == life]


async def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    received: list[str | bytes] = []

    def talk(connection: ServerConnection) -> None:
        received.append(connection.recv())
        send_and_wait(b"one", b"two")(connection)

    with serving(talk) as peer:
        [pipeline] = load_example("websocket", tmp_path, {'"ws://localhost:8765/trades"': "url"}, url=peer.url)
        await run_until(pipeline, lambda: b"two" in content(tmp_path / "trades"), state=tmp_path / "state")
    assert received == ['{"subscribe": "trades"}']


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
