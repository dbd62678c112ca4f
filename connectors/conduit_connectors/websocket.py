"""The WebSocket connector: the messages of a server, as they come."""

import logging
import ssl
import threading
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, Required, Unpack

from pydantic import Field, SecretStr, field_validator

from conduit_connectors.broker_tls import TlsArguments, TlsOptions
from conduit_connectors.http.connection_options import HttpHeaders
from conduit_connectors.numbering import number_of, positions_of
from conduit_py.sdk import (
    Dataset,
    EndOfSource,
    FatalError,
    NothingYet,
    Reading,
    Record,
    RecordRefused,
    SourceConnector,
    TransientError,
    decode_json,
)
from conduit_py.sdk.template import option_error

log = logging.getLogger("conduit_py.websocket")

_LOOK_SECONDS = 0.2
"""How soon a waiting read notices that it is to stop."""
_QUEUE_MAX = 16
"""How many messages wait in this process. While they do, nothing more is read from the socket."""
_TOO_LARGE = 1009
_REFUSING = range(400, 500)
_BUSY = (408, 425, 429)


class SourceOptions(TlsOptions):
    """Which server, what to say to it, and what its messages are."""

    url: SecretStr = Field(description="the server, as ws://host:port/path, or wss: with TLS")
    headers: HttpHeaders = Field(default={}, description="headers of the handshake; their values are secrets")
    send: list[SecretStr] = Field(default=[], description="what to send after each handshake, such as subscriptions")
    format: Literal["raw", "json"] = Field(default="raw", description="what a message is: bytes, or a JSON object")
    message_size_max: int = Field(default=2**20, ge=1, description="the most bytes of a message; more is an error")
    ping_seconds: float = Field(default=20.0, gt=0, description="how often the server is asked whether it is there")
    answer_seconds: float = Field(default=20.0, gt=0, description="how long the server may take to answer")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        scheme, _, rest = url.get_secret_value().partition("://")
        if scheme not in ("ws", "wss") or not rest.strip("/") or rest.startswith("/"):
            raise option_error("must be a URL that begins with ws:// or wss:// and has a host")
        return url


class SourceArguments(TlsArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    headers: dict[str, str | SecretStr]
    send: list[str] | list[SecretStr]
    format: Literal["raw", "json"]
    message_size_max: int
    ping_seconds: float
    answer_seconds: float


class Source(SourceConnector[SourceOptions]):
    """The messages of a WebSocket server, as they come. It cannot resume: WebSocket has no acks and no history.

    What the server sends while the pipeline is down, or what a killed process had read and not delivered, is lost;
    write to a journal first if that matters. A connection that ends is made again at once, with the messages of `send`;
    what comes in between is lost too. While the pipeline is slow nothing is read from the socket, so the server waits,
    or gives up. A message that is not of the format is a dead letter.
    """

    requires: ClassVar = {"websockets": "conduit-dataflow[websocket]"}
    resumable: ClassVar[bool] = False
    endless = True

    _connection: Any = None
    _closing: ExitStack | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at(self.options.url.get_secret_value())]

    @property
    def gives(self) -> Any:
        return bytes if self.options.format == "raw" else dict

    def probe(self) -> str:
        self._connect(greet=False)
        self.teardown()
        return "the server accepts the handshake"

    def open(self, position: bytes | None) -> None:
        self._number = 0 if position is None else number_of("websocket", position)
        self._stopped = threading.Event()
        self._quiet = False
        """True if the connection has brought nothing yet."""
        self._connect()

    def check_position(self, position: bytes) -> None:
        number_of("websocket", position)

    def read(self, n: int) -> Reading:
        while not self._stopped.is_set():
            if self._connection is None:
                self._connect()
            messages = self._receive(n)
            if messages:
                self._quiet = False
                return self._parse(messages)
        raise EndOfSource

    def stop(self) -> None:
        self._stopped.set()

    def teardown(self) -> None:
        closing, self._closing, self._connection = self._closing, None, None
        if closing is not None:
            closing.close()

    def _receive(self, n: int) -> list[bytes]:
        """The messages that are there, at most `n`; none if none comes for a while."""
        messages: list[bytes] = []
        try:
            while len(messages) < n:
                messages.append(self._connection.recv(timeout=0 if messages else _LOOK_SECONDS, decode=False))
        except TimeoutError:
            pass
        except self._library.ConnectionClosed as error:
            self.teardown()
            if error.sent is not None and error.sent.code == _TOO_LARGE:
                raise TransientError(
                    f"the WebSocket server {self._place} sent more than {self.options.message_size_max} bytes at once",
                    suggestion="raise message_size_max",
                ) from error
            log.info("the WebSocket server %s ended the connection: %s", self._place, error)
            if not messages and self._quiet:
                # A server that accepts and hangs up must not be called in a busy loop.
                raise NothingYet from error
        return messages

    def _parse(self, messages: list[bytes]) -> Reading:
        positions = positions_of("websocket", range(self._number + 1, self._number + len(messages) + 1))
        self._number += len(messages)
        records: list[Record] = []
        refused: dict[int, str] = {}
        for index, (message, position) in enumerate(zip(messages, positions, strict=True)):
            after: Any = message
            if self.options.format == "json":
                try:
                    after = decode_json(message)
                    if not isinstance(after, dict):
                        raise RecordRefused("is JSON, but no object")
                except RecordRefused as error:
                    refused[index], after = error.message, message
            records.append(Record.of(after, position=position))
        return Reading(records, refused)

    def _connect(self, *, greet: bool = True) -> None:
        """Shake hands, and send the first messages."""
        options = self.options
        self._library = library = _load_websockets()
        url = options.url.get_secret_value()
        self._closing = ExitStack()
        try:
            connection = library.connect(
                url,
                ssl=options.make_context("WebSocket") if url.startswith("wss:") else None,
                additional_headers={name: value.get_secret_value() for name, value in options.headers.items()},
                user_agent_header="conduit-py",
                # A small message that unpacks to gigabytes would have to be unpacked to be refused.
                compression=None,
                proxy=None,
                open_timeout=options.answer_seconds,
                close_timeout=1.0,
                ping_interval=options.ping_seconds,
                ping_timeout=options.answer_seconds,
                max_size=options.message_size_max,
                max_queue=_QUEUE_MAX,
            )
            self._connection = self._closing.enter_context(connection)
            for message in options.send if greet else ():
                self._connection.send(message.get_secret_value())
        except FatalError:
            raise
        except Exception as error:  # the plugin boundary: the library raises errors of many kinds
            raise self._failure(error) from error
        self._quiet = True

    def _failure(self, error: Exception) -> Exception:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        what = f"the WebSocket server {self._place}: {str(error)[:300] or type(error).__name__}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return FatalError(what, suggestion="check url and ca_file")
        if status in _REFUSING and status not in _BUSY:
            return FatalError(what, suggestion="check url and headers")
        return TransientError(what, suggestion="check url, and that the server runs")

    @property
    def _place(self) -> str:
        """The address without its query and its user, which may have secrets."""
        scheme, _, rest = self.options.url.get_secret_value().partition("://")
        host, slash, path = rest.partition("?")[0].partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"[:300]


class _WebSockets:
    """What is used of the library."""

    def __init__(self, connect: Any, closed: type[Exception]) -> None:
        self.connect = connect
        self.ConnectionClosed = closed


def _load_websockets() -> Any:
    try:
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.client import connect
    except ImportError as error:
        raise FatalError(
            "WebSocket is used through websockets, which is not installed",
            suggestion="pip install 'conduit-dataflow[websocket]'",
        ) from error
    return _WebSockets(connect, ConnectionClosed)
