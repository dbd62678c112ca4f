"""EventStream: server-sent events to one client, who has to keep up."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import trio
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from conduit_py.server.views import ApiModel

SEND_SECONDS = 10.0
"""How long a client may leave an event unread before it is dropped."""


class EventStream(StreamingResponse):
    """Holds `held` while it lasts, and ends when its client does not keep up."""

    media_type = "text/event-stream"

    def __init__(self, held: AbstractContextManager[object], events: AsyncIterator[bytes]) -> None:
        super().__init__(events)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with trio.fail_after(SEND_SECONDS):
                await send(message)

        # Held here, not by the route: the route has returned before the first event is sent.
        with self._held:
            try:
                await super().__call__(scope, receive, send_in_time)
            except trio.TooSlowError:
                return


def encode_event(name: str, data: ApiModel) -> bytes:
    """One event as it is sent."""
    return f"event: {name}\ndata: {data.model_dump_json()}\n\n".encode()


def event_response(description: str) -> dict[int | str, dict[str, Any]]:
    """How a route that answers with events is documented."""
    return {200: {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
