"""ScriptedRegistry: a schema registry on loopback that gives the answers of a test, for what no real one does."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import msgspec
import trio

Answer = tuple[int, Any]
"""Status, and a body: bytes as they are, anything else as JSON."""


class ScriptedRegistry:
    """Answers by path: with the same each time, or with those of a list in order, the last one again and again."""

    def __init__(self, answers: Mapping[str, Answer | list[Answer]], port: int, scheme: str) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        """The path and the headers of each request."""
        self.url = f"{scheme}://127.0.0.1:{port}"
        self._answers = {path: list(each) if isinstance(each, list) else [each] for path, each in answers.items()}

    def answer(self, path: str) -> Answer:
        scripted = self._answers.get(path)
        if scripted is None:
            return 404, {"error_code": 40403, "message": "no such schema"}
        return scripted.pop(0) if len(scripted) > 1 else scripted[0]

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        # A client may go before it has read all.
        with suppress(trio.BrokenResourceError):
            await self._serve_one(connection, stream)

    async def _serve_one(self, connection: h11.Connection, stream: trio.abc.Stream) -> None:
        async with stream:
            request: h11.Request | None = None
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    await self._respond(connection, stream, request)
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    return

    async def _respond(self, connection: h11.Connection, stream: trio.abc.Stream, request: h11.Request) -> None:
        path = request.target.decode()
        self.requests.append((path, {name.decode(): value.decode() for name, value in request.headers}))
        status, body = self.answer(path)
        text = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = [("content-length", str(len(text))), ("connection", "close")]
        await stream.send_all(
            (connection.send(h11.Response(status_code=status, headers=headers)) or b"")
            + (connection.send(h11.Data(data=text)) or b"")
            + (connection.send(h11.EndOfMessage()) or b"")
        )


@asynccontextmanager
async def scripted_registry(
    answers: Mapping[str, Answer | list[Answer]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedRegistry]:
    """A registry that listens until the block ends, with TLS if it is given."""
    async with trio.open_nursery() as nursery:
        listeners: list[Any] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        if tls is not None:
            listeners = [trio.SSLListener(each, tls) for each in listeners]
        registry = ScriptedRegistry(answers, port, "http" if tls is None else "https")
        nursery.start_soon(trio.serve_listeners, registry.serve, listeners)
        yield registry
        nursery.cancel_scope.cancel()
