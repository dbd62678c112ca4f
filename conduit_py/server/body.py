"""BodyLimit: no request body is longer, or takes longer to arrive, than the API needs."""

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conduit_py.server.problems import Fault, fault_response

BYTES_MAX = 128 * 1024
"""A position of the greatest length in base64, and room around it."""
SECONDS_MAX = 30.0
DRAIN_SECONDS = 2.0


class BodyLimit:
    """Reads the body of a request whole before anything else sees it, or answers 413 or 408."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, fault = b"", _declared_too_long(scope)
        if fault is None:
            try:
                with trio.fail_after(SECONDS_MAX):
                    body = await _read(receive)
            except trio.TooSlowError:
                fault = 408, Fault(code="request.timed_out", message="the body did not arrive in time")
            except _TooLong:
                fault = _too_long()
            except _Gone:
                return
        if fault is None:
            await self._app(scope, _replay(body, receive), send)
        else:
            await _drain(receive)
            await fault_response(*fault, headers={"connection": "close"})(scope, receive, send)


class _TooLong(Exception):
    """More has arrived than is allowed."""


class _Gone(Exception):
    """The client left before its body had arrived: half a request is none."""


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > BYTES_MAX:
            raise _TooLong
        if not message.get("more_body", False):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()  # only a disconnect can follow
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _drain(receive: Receive) -> None:
    """Take in what is on its way, for a moment: a client that is still sending would not see the answer."""
    with trio.move_on_after(DRAIN_SECONDS):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


def _declared_too_long(scope: Scope) -> tuple[int, Fault] | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > BYTES_MAX:
            return _too_long()
    return None


def _too_long() -> tuple[int, Fault]:
    return 413, Fault(code="request.too_large", message=f"the body is longer than {BYTES_MAX} bytes")
