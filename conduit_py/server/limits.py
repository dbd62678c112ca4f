"""Limits on clients: how many connections, how long a client may read nothing, how long a request body may be."""

import errno
import logging
import math
import resource
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conduit_py.server.errors import error_response
from conduit_py.wire_error import WireError

log = logging.getLogger("conduit_py.server")

CLIENT_READ_SECONDS = 10.0
CLIENT_BYTES_PER_SECOND = 256 * 1024
"""What a client must read on average of a large answer. The metrics of 200 pipelines are 4 MB."""
CONNECTIONS_MAX = 512
LINGER_SECONDS = 2.0
"""What the protocol may still do once the connection is closed: it can wait for ever for a reader that has left."""
ADMIT = "conduit.admit"
"""The extension of ASGI by which the access check says that it let a request in."""
REPORT_SECONDS = 60.0
"""How often a connection that failed is worth a traceback in the log."""
NO_DESCRIPTOR_SECONDS = 0.1


class LimitedConnection(trio.abc.HalfCloseableStream):
    """A socket that is closed when its peer does not read what it is sent within CLIENT_READ_SECONDS."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        self.scope = trio.CancelScope()
        self.admitted = False
        """Whether a complete request is under way on it that the access check let in."""
        self.idle = True
        self.idle_since = trio.current_time()
        self.ending = False

    @contextmanager
    def wait_idle(self) -> Iterator[None]:
        """While it waits for a request; it may have to end instead."""
        self.admitted, self.idle, self.idle_since = False, True, trio.current_time()
        if self.ending:
            self.scope.cancel()
        try:
            yield
        finally:
            self.idle = False

    def end(self) -> None:
        """End it now, or after the request that is under way."""
        self.ending = True
        if self.idle:
            self.scope.cancel()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # The protocol shields its sends from cancellation, but not from a deadline within.
        try:
            with trio.fail_after(CLIENT_READ_SECONDS):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client reads nothing") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        # An earlier deadline stays: closing twice must not give the protocol more time.
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + LINGER_SECONDS)
        await self._stream.aclose()


class LimitedListener(trio.abc.Listener[LimitedConnection]):
    """Accepts connections with limits. Without a descriptor for one it waits until there is one."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._reported_at = -math.inf

    async def accept(self) -> LimitedConnection:
        while True:
            try:
                return LimitedConnection(await self._listener.accept())
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._report(error)
                await trio.sleep(NO_DESCRIPTOR_SECONDS)

    def _report(self, error: OSError) -> None:
        if trio.current_time() - self._reported_at >= REPORT_SECONDS:
            log.warning("new connections wait for a file descriptor: %s (allow more: ulimit -n)", error.strerror)
            self._reported_at = trio.current_time()

    async def aclose(self) -> None:
        await self._listener.aclose()


Stream: TypeAlias = LimitedConnection | trio.SSLStream[LimitedConnection]


class ConnectionLimit:
    """Passes connections to a handler, at most `connections_max` at a time. One that fails affects no other.

    They take at most half of the descriptors that the process may open: pipelines need the others.
    At the limit, a new connection replaces the one that has waited longest without an admitted request. So clients
    without a token cannot keep others out, no matter how many connections they hold.
    """

    def __init__(self, handler: Callable[[Stream], Awaitable[None]], *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._handler = handler
        self._connections_max = connections_max
        self._open: set[LimitedConnection] = set()
        self._failures = 0
        self._reported_at = -math.inf

    async def __call__(self, stream: Stream) -> None:
        connection = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        # Closed, not queued: clients that wait would hold file descriptors that pipelines need.
        if not self._make_room():
            await trio.aclose_forcefully(stream)
            return
        self._open.add(connection)
        try:
            with connection.scope:
                await self._handler(stream)
        except Exception as error:  # a boundary: a connection that fails may not end the server, and so its pipelines
            self._report(error)
        finally:
            self._open.discard(connection)
            # Forcefully: a graceful end of TLS would wait for a peer that may be gone.
            await trio.aclose_forcefully(stream)

    def end_all(self) -> None:
        """End connections that wait for a request, and the others after theirs."""
        for connection in self._open:
            connection.end()

    def _make_room(self) -> bool:
        if len(self._open) < min(self._connections_max, _descriptors_max() // 2):
            return True
        waiting = [connection for connection in self._open if not connection.admitted]
        if not waiting:
            return False
        longest = min(waiting, key=lambda connection: connection.idle_since)
        self._open.discard(longest)
        longest.scope.cancel()
        return True

    def _report(self, error: Exception) -> None:
        # Not every time: a client that can cause this could fill the disk with tracebacks.
        self._failures += 1
        if trio.current_time() - self._reported_at >= REPORT_SECONDS:
            log.error("a connection ended by an error of the server itself (%d so far)", self._failures, exc_info=error)
            self._reported_at = trio.current_time()


def _descriptors_max() -> int:
    # Asked each time: the limit of a running process may be changed.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


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
        body, error = b"", _declared_too_long(scope)
        if error is None:
            try:
                # One deadline for the whole body: a byte now and then would renew a limit on each read.
                with trio.fail_after(SECONDS_MAX):
                    body = await _read(receive)
            except trio.TooSlowError:
                error = 408, WireError("request.timed_out", "the body did not arrive in time")
            except _TooLong:
                error = _too_long()
            except _Gone:
                return
        if error is None:
            await self._app(scope, _replay(body, receive), send)
        else:
            await _drain(receive)
            # The rest of the body was not read, so the connection cannot carry another request.
            await error_response(*error, headers={"connection": "close"})(scope, receive, send)


class _TooLong(Exception):
    """More has arrived than is allowed."""


class _Gone(Exception):
    """The client left before its body had arrived."""


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
    """Read and drop the rest of a body, for DRAIN_SECONDS at most."""
    # A client that is still sending when the connection closes gets a reset instead of the answer.
    with trio.move_on_after(DRAIN_SECONDS):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


def _declared_too_long(scope: Scope) -> tuple[int, WireError] | None:
    # Refused before a byte is read. Only the first digits count: a number of a megabyte would take long to parse.
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > BYTES_MAX:
            return _too_long()
    return None


def _too_long() -> tuple[int, WireError]:
    return 413, WireError("request.too_large", f"the body is longer than {BYTES_MAX} bytes")
