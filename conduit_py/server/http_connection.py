"""HTTP/1.1 on one connection: h11 parses, an ASGI application answers, one request at a time.

There is no HTTP/2 and no WebSocket: nothing here needs them, and each lets a client hold what it does not pay for.
Every wait for a client has a deadline, and a client that is gone ends what it asked for.
"""

from email.utils import formatdate
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from conduit_py.server.errors import CODES, error_response
from conduit_py.server.limits import ADMIT, CLIENT_BYTES_PER_SECOND, CLIENT_READ_SECONDS, LimitedConnection, Stream
from conduit_py.wire_error import WireError

HANDSHAKE_SECONDS = 10.0
HEAD_SECONDS = 10.0
"""How long a connection may be without a request, or with half of its head."""
HEAD_BYTES_MAX = 16 * 1024
PIPELINED_BYTES_MAX = 64 * 1024
"""How much of the requests after this one is read while this one is answered."""
GONE_SECONDS = 10.0
"""What a request may still take once its client is gone: an order is carried out or not, but not cut in half."""
UNREAD_BYTES_MAX = 256 * 1024
UNREAD_SECONDS = 2.0
"""What is read of a body that the application did not want. A client that is still sending would not see the answer."""
CHUNK_BYTES = 64 * 1024

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


async def serve_http(app: ASGIApp, stream: Stream) -> None:
    """Answer the requests of one connection until either side ends it."""
    encrypted = isinstance(stream, trio.SSLStream)
    try:
        if isinstance(stream, trio.SSLStream):
            with trio.fail_after(HANDSHAKE_SECONDS):
                await stream.do_handshake()
            connection = stream.transport_stream
        else:
            connection = stream
        client, server = connection.socket.getpeername(), connection.socket.getsockname()
    except (*_GONE, trio.TooSlowError):
        return
    addresses = {"scheme": "https" if encrypted else "http", "client": client[:2], "server": server[:2]}
    await _HttpConnection(app, stream, connection, addresses).run()


class _HttpConnection:
    """The loop over the requests of a connection."""

    def __init__(
        self, app: ASGIApp, stream: trio.abc.Stream, connection: LimitedConnection, addresses: dict[str, object]
    ) -> None:
        self._app = app
        self._stream = stream
        self._connection = connection
        self._addresses = addresses
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._bare = False
        """Whether the answer has no body, because the request is a HEAD."""

    async def run(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                await self._answer(request)
                if not await self._can_go_on():
                    break
            await self._end()
        except _GONE:
            return

    async def _next_request(self) -> h11.Request | None:
        """The next request, or None when the connection is to end."""
        with self._connection.wait_idle(), trio.move_on_after(HEAD_SECONDS):
            try:
                event = await _next_event(self._protocol, self._stream)
                if isinstance(event, h11.Request):
                    self._bare = event.method == b"HEAD"
                    _check(event)
                    return event
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
        return None

    async def _answer(self, request: h11.Request) -> None:
        async with trio.open_nursery() as nursery:
            exchange = _Exchange(self._protocol, self._stream, self._connection, nursery.cancel_scope, bare=self._bare)
            nursery.start_soon(exchange.watch)
            await self._app(self._scope(request, exchange), exchange.receive, exchange.send)
            nursery.cancel_scope.cancel()
        if exchange.malformed is not None:
            await self._refuse(exchange.malformed)

    def _scope(self, request: h11.Request, exchange: "_Exchange") -> Scope:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode().upper(),
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "state": {},
            "extensions": {ADMIT: exchange.admit},
            **self._addresses,
        }

    async def _can_go_on(self) -> bool:
        """Whether both sides are done with this request and the connection is ready for the next one."""
        protocol, unread = self._protocol, 0
        with trio.move_on_after(UNREAD_SECONDS):
            while protocol.our_state is h11.DONE and protocol.their_state is h11.SEND_BODY:
                try:
                    event = await _next_event(protocol, self._stream)
                except h11.RemoteProtocolError:
                    return False
                unread += len(event.data) if isinstance(event, h11.Data) else 0
                if unread > UNREAD_BYTES_MAX:
                    return False
        if protocol.our_state is h11.DONE and protocol.their_state is h11.DONE and not self._connection.ending:
            protocol.start_next_cycle()
            return True
        return False

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answer what is no request at all; nothing after it on this connection can be trusted."""
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = error.error_status_hint
        code = next((code for known, code in CODES.items() if known == status), "request.malformed")
        response = error_response(status, WireError(code, str(error)), headers={"connection": "close"})
        head = h11.Response(status_code=status, headers=[*response.raw_headers, _date()])
        body = [] if self._bare else [h11.Data(data=bytes(response.body))]
        events: list[h11.Event] = [head, *body, h11.EndOfMessage()]
        await self._stream.send_all(b"".join(self._protocol.send(event) or b"" for event in events))

    async def _end(self) -> None:
        """Close the connection so that the client has a chance to read the answer."""
        if self._protocol.our_state is h11.SEND_BODY:
            return  # an answer that was cut short: the client must not take it for a whole one
        if self._stream is self._connection:
            # Closed with bytes unread, a socket takes back what it sent and the client has not read yet.
            await self._connection.send_eof()
            unread = 0
            with trio.move_on_after(UNREAD_SECONDS):
                while unread < UNREAD_BYTES_MAX and (chunk := await self._stream.receive_some(CHUNK_BYTES)):
                    unread += len(chunk)
        await self._stream.aclose()


class _Exchange:
    """One request and its answer, as ASGI's `receive` and `send`."""

    def __init__(
        self,
        protocol: h11.Connection,
        stream: trio.abc.Stream,
        connection: LimitedConnection,
        cancel_scope: trio.CancelScope,
        *,
        bare: bool,
    ) -> None:
        self._bare = bare
        self._protocol = protocol
        self._stream = stream
        self._connection = connection
        self._cancel_scope = cancel_scope
        self._head: h11.Response | None = None
        self._admitted = False
        self._complete = trio.Event()
        self._gone = trio.Event()
        self.malformed: h11.RemoteProtocolError | None = None
        # A request without a body is complete now, and its client can be watched from the beginning.
        self._first: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED] = h11.NEED_DATA
        if not protocol.they_are_waiting_for_100_continue:
            self._take_first()

    def _take_first(self) -> None:
        try:
            self._first = self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            self._leave(error)
        if isinstance(self._first, h11.EndOfMessage):
            self._complete.set()

    def admit(self) -> None:
        """The access check let the request in: once it is complete, nobody else gets the place of its connection."""
        self._admitted = True
        self._connection.admitted = self._complete.is_set()

    async def receive(self) -> Message:
        if self._complete.is_set() and self._first is h11.NEED_DATA:
            await self._gone.wait()
        if self._gone.is_set():
            return {"type": "http.disconnect"}
        try:
            event = await self._next_event()
        except h11.RemoteProtocolError as error:
            self._leave(error)
            return {"type": "http.disconnect"}
        except _GONE:
            self._leave()
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._complete.set()
        self._connection.admitted = self._admitted
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _next_event(self) -> object:
        event, self._first = self._first, h11.NEED_DATA
        if event is not h11.NEED_DATA:
            return event
        if self._protocol.they_are_waiting_for_100_continue:
            go_on = self._protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._stream.send_all(go_on or b"")
        return await _next_event(self._protocol, self._stream)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = h11.Response(status_code=message["status"], headers=[*message.get("headers", []), _date()])
            self._bare = self._bare or message["status"] in (204, 304)
            return
        head, self._head = self._head, None
        body = memoryview(b"" if self._bare else bytes(message.get("body") or b""))
        last = not message.get("more_body", False)
        try:
            # One deadline for all pieces: a client that takes a little now and then would hold the whole body.
            with trio.fail_after(CLIENT_READ_SECONDS + len(body) / CLIENT_BYTES_PER_SECOND):
                for start in range(0, max(len(body), 1), CHUNK_BYTES):
                    piece, final = body[start : start + CHUNK_BYTES], start + CHUNK_BYTES >= len(body)
                    await self._stream.send_all(self._encode(head, bytes(piece), end=last and final))
                    head = None
        except (*_GONE, trio.TooSlowError):
            # There is nobody to answer, so there is nothing more to do here.
            self._gone.set()
            self._cancel_scope.cancel()
            await trio.lowlevel.checkpoint()

    def _encode(self, head: h11.Response | None, piece: bytes, *, end: bool) -> bytes:
        # The head together with the first of the body: most answers are one packet. A large body goes in pieces, which
        # are copied (and encrypted) one at a time: many clients may hold one answer that is made for all of them.
        events: list[h11.Event] = [] if head is None else [head]
        if piece:
            events.append(h11.Data(data=piece))
        if end:
            events.append(h11.EndOfMessage())
        return b"".join(self._protocol.send(event) or b"" for event in events)

    async def watch(self) -> None:
        """Notice that the client is gone while its request is being answered."""
        await self._complete.wait()
        try:
            while len(self._protocol.trailing_data[0]) < PIPELINED_BYTES_MAX:
                data = bytes(await self._stream.receive_some(CHUNK_BYTES))
                self._protocol.receive_data(data)
                if not data:
                    self._leave()
                    return
        except _GONE:
            self._leave()

    def _leave(self, malformed: h11.RemoteProtocolError | None = None) -> None:
        self.malformed = malformed
        self._gone.set()
        self._cancel_scope.deadline = min(self._cancel_scope.deadline, trio.current_time() + GONE_SECONDS)


async def _next_event(protocol: h11.Connection, stream: trio.abc.Stream) -> object:
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(bytes(await stream.receive_some(CHUNK_BYTES)))
    return event


def _check(request: h11.Request) -> None:
    """Refuse what two servers in a row could read in two ways, and versions that are not spoken here."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("this server speaks HTTP/1.1", error_status_hint=505)
    names = {name for name, _ in request.headers}
    # The one would end the body here, the other there: what lies between could be another request.
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("a body has a length or comes in chunks, not both", error_status_hint=400)


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()
