"""Listener: a port of the source's own, for HTTP/1.1: where no server passes requests on."""

import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import h11
import trio

from conduit_connectors.webhook.source_options import SourceOptions
from conduit_py.sdk import FatalError, HttpAnswer, HttpRequest

log = logging.getLogger("conduit_py")

HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 15.0
SEND_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 1.0
HEAD_SIZE_MAX: Final = 16 * 1024
CHUNK_SIZE: Final = 64 * 1024
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError, ssl.SSLError, OSError)
_ENDING: Final = HttpAnswer(503, b'{"error":"the source has stopped"}', {"retry-after": "5"})

Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class Listener:
    """Accepts connections and answers their requests, one after the other on each.

    Every wait for a client has a deadline. There are at most twice as many connections as requests may wait.
    """

    def __init__(self, options: SourceOptions, listeners: list[trio.abc.Listener[trio.abc.Stream]]) -> None:
        self._options = options
        self._listeners = listeners
        self._connections = 0

    @classmethod
    async def bind(cls, options: SourceOptions) -> "Listener":
        """Take the port. Raises FatalError if it cannot be had."""
        assert options.listen is not None
        host, _, port = options.listen.rpartition(":")
        try:
            listeners = await trio.open_tcp_listeners(int(port), host=host.strip("[]"))
            tls = _tls(options)
        except OSError as error:  # SSLError is one
            raise FatalError(
                f"cannot listen on {options.listen}: {error.strerror or error}",
                suggestion="choose another port with `listen`, and check tls_cert and tls_key",
            ) from error
        if tls is not None:
            return cls(options, [trio.SSLListener(each, tls, https_compatible=True) for each in listeners])
        return cls(options, list(listeners))

    async def serve(self, handler: Handler) -> None:
        async def handle(stream: trio.abc.Stream) -> None:
            if self._connections >= 2 * self._options.waiting_max:
                await trio.aclose_forcefully(stream)
                return
            self._connections += 1
            try:
                await self._handle(stream, handler)
            except Exception:  # a boundary: one connection may not end the pipeline
                log.exception("a connection of a webhook source failed")
            finally:
                self._connections -= 1
                await trio.aclose_forcefully(stream)

        await trio.serve_listeners(handle, self._listeners)

    async def close(self) -> None:
        for each in self._listeners:
            await each.aclose()

    async def _handle(self, stream: trio.abc.Stream, handler: Handler) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX)
        try:
            while True:
                with trio.fail_after(HEAD_SECONDS):
                    head = await _next_event(connection, stream)
                if not isinstance(head, h11.Request):
                    return
                await self._answer(_ListenerRequest(head, connection, stream), handler)
                if connection.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await _send(connection, stream, HttpAnswer(error.error_status_hint))
        except (*_GONE, trio.TooSlowError):
            return

    async def _answer(self, request: "_ListenerRequest", handler: Handler) -> None:
        connection, stream = request.connection, request.stream
        if request.path != self._options.path:
            await _send(connection, stream, HttpAnswer(404))
            return
        try:
            answer = await handler(request)
        except trio.Cancelled:
            # The run ends: say so, and the sender need not wait for its own time limit.
            with trio.move_on_after(GOODBYE_SECONDS, shield=True):
                await _send(connection, stream, _ENDING)
            raise
        await _send(connection, stream, answer)


class _ListenerRequest:
    def __init__(self, head: h11.Request, connection: h11.Connection, stream: trio.abc.Stream) -> None:
        self.method = head.method.decode("ascii").upper()
        self.path = head.target.partition(b"?")[0].decode("latin-1")
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers]
        self.connection = connection
        self.stream = stream

    async def read_body(self, size_max: int) -> bytes:
        body = bytearray()
        try:
            with trio.fail_after(BODY_SECONDS):
                if self.connection.they_are_waiting_for_100_continue:
                    go_on = self.connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                    await self.stream.send_all(go_on or b"")
                while isinstance(event := await _next_event(self.connection, self.stream), h11.Data):
                    body += event.data
                    if len(body) > size_max:
                        raise ValueError(f"the body is longer than {size_max} bytes")
        except trio.TooSlowError as error:
            raise TimeoutError("the body did not arrive in time") from error
        except _GONE as error:
            raise ConnectionError("the client left") from error
        return bytes(body)


async def _next_event(connection: h11.Connection, stream: trio.abc.Stream) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(bytes(await stream.receive_some(CHUNK_SIZE)))
    return event


async def _send(connection: h11.Connection, stream: trio.abc.Stream, answer: HttpAnswer) -> None:
    """Send an answer. The connection ends with it if the body of the request was not read to its end."""
    headers = {"content-type": "application/json", "content-length": str(len(answer.body)), **answer.headers}
    if connection.their_state is not h11.DONE:
        headers["connection"] = "close"
    head = h11.Response(status_code=answer.status, headers=list(headers.items()))
    events: list[h11.Event] = [head, h11.Data(data=answer.body), h11.EndOfMessage()]
    with trio.fail_after(SEND_SECONDS):
        await stream.send_all(b"".join(connection.send(event) or b"" for event in events))


def _tls(options: SourceOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.tls_cert, options.tls_key)
    return context
