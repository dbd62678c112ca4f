"""Connection: a client's connection with limits: on their number, and on how long a client may read nothing."""

import logging
from collections.abc import Awaitable, Callable

import trio

log = logging.getLogger("conduit_py.server")

SEND_SECONDS = 10.0
CONNECTIONS_MAX = 512
LINGER_SECONDS = 2.0
"""What the protocol may still do once the connection is closed: it can wait for ever for a reader that has left."""


class Connection(trio.abc.HalfCloseableStream):
    """A socket whose peer has to take in what it is sent: one that does not is dropped, and nobody waits for it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        self.scope = trio.CancelScope()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # The protocol shields its sends from cancellation, but not from a deadline within.
        try:
            with trio.fail_after(SEND_SECONDS):
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
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + LINGER_SECONDS)
        await self._stream.aclose()


class Listener(trio.abc.Listener[Connection]):
    """Accepts connections with limits."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    async def accept(self) -> Connection:
        return Connection(await self._listener.accept())

    async def aclose(self) -> None:
        await self._listener.aclose()


class Door:
    """Hands connections to a handler, so many at a time; one that fails concerns nobody else."""

    def __init__(
        self, handler: Callable[[trio.abc.Stream], Awaitable[None]], *, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self._handler = handler
        self._connections_max = connections_max
        self._open = 0

    async def __call__(self, stream: "Connection | trio.SSLStream[Connection]") -> None:
        connection = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if self._open >= self._connections_max:
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            with connection.scope:
                await self._handler(stream)
        except Exception:  # a border: a connection that fails may not end the server, and so its pipelines
            log.exception("a connection ended by an error of the server itself")
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)
