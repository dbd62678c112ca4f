"""EventClient: a client of server-sent events that calls an application in this process, on the test's own clock."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio
from starlette.types import ASGIApp, Message, Scope


class Event(NamedTuple):
    """One event, and when it arrived."""

    at: float
    name: str
    data: Any


class EventClient:
    """Keeps what a path sends. `take` may be slow: it is awaited before each message with a `taken` event is read."""

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        query: bytes = b"",
        *,
        take: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        taken: str = "",
    ) -> None:
        self._app = app
        self._take = take
        self._taken = f"event: {taken}".encode()
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "state": {},
        }
        self._asked = False
        self.left = trio.Event()
        """Set it to hang up."""
        self.status = 0
        self.body = b""
        self.events: list[Event] = []
        self.ended_at: float | None = None

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def watch(self) -> None:
        await self._app(dict(self._scope), self._receive, self._send)
        self.ended_at = trio.current_time()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        body = message.get("body", b"")
        if self._taken in body:
            await self._take()
        self.body += body
        for text in body.decode().split("\n\n"):
            if text.startswith("event: "):
                name, _, data = text.removeprefix("event: ").partition("\ndata: ")
                self.events.append(Event(trio.current_time(), name, json.loads(data)))
