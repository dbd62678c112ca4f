"""NatsConnection: the client of the library, in an event loop of its own, and what its errors mean."""

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import Field, SecretStr

from conduit_connectors.broker_tls import TlsArguments, TlsOptions
from conduit_py.sdk import FatalError, TransientError

T = TypeVar("T")

ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 1.0


class NatsOptions(TlsOptions):
    """Which server and stream, and who asks."""

    url: SecretStr = Field(description="the server, as nats://user:password@host:port; several with commas between")
    stream: str = Field(min_length=1, pattern=r"^[^.*>\s]+$", description="the stream, which must exist")
    credentials: str | None = Field(default=None, description="the path of a credentials file")


class NatsArguments(TlsArguments, total=False):
    """NatsOptions as a caller writes them, without `url` and `stream`, for editors and type checkers."""

    credentials: str | None


class NatsConnection:
    """Runs coroutines of the library, which needs an asyncio event loop, in a thread. Any thread may call it."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: Exception | None = None
        self.client: Any = None
        self.lost: asyncio.Event | None = None
        """Set when the connection is lost, if `reconnects` is False."""

    def open(self, *, reconnects: bool = True) -> None:
        """Connect. The library connects again by itself, or with `reconnects=False` never."""
        load_nats()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name="nats", daemon=True).start()
        self.run(self._connect(reconnects))

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._leave(), loop).result(ANSWER_SECONDS)
            finally:
                loop.call_soon_threadsafe(loop.stop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop; return its result, or raise its error as one of ours."""
        loop = self._loop
        assert loop is not None, "the connection is not open"
        try:
            answer = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            # Closed meanwhile, by a teardown that did not wait for this call.
            work.close()
            raise self.failure(ConnectionError("it was closed")) from error
        while not concurrent.futures.wait([answer], _LOOK_SECONDS).done:
            # A call that reached the loop just before it stopped never completes.
            if self._loop is not loop:
                raise self.failure(ConnectionError("it was closed"))
        try:
            return answer.result()
        except (FatalError, TransientError):
            raise
        except Exception as error:  # the plugin boundary: the library's errors have no common base class
            raise self.failure(error) from error

    def jetstream(self) -> Any:
        return self.client.jetstream(timeout=ANSWER_SECONDS)

    async def _connect(self, reconnects: bool) -> None:
        nats, options = load_nats(), self._options
        servers = [server.strip() for server in options.url.get_secret_value().split(",")]
        self.lost = asyncio.Event()
        self.client = await nats.connect(
            servers,
            user_credentials=options.credentials,
            allow_reconnect=reconnects,
            max_reconnect_attempts=3,
            reconnect_time_wait=1,
            connect_timeout=5,
            name="conduit-py",
            error_cb=self._note_error,
            disconnected_cb=self._note_loss,
            tls=options.make_context("NATS") if options.has_files else None,
        )

    async def _note_error(self, error: Exception) -> None:
        """Keep why the server refuses the user: the next call raises only that there is no server."""
        if "authorization" in str(error).lower():
            self._refusal = error

    async def _note_loss(self) -> None:
        assert self.lost is not None
        self.lost.set()

    async def _leave(self) -> None:
        if self.client is not None:
            await self.client.close()
        # A call whose caller was cancelled may still wait in its thread: end it, or the thread never ends.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    @property
    def place(self) -> str:
        """The addresses of the servers, for people."""
        servers = [each.strip().rpartition("@")[2] for each in self._options.url.get_secret_value().split(",")]
        return ", ".join(server.removeprefix("nats://").removeprefix("tls://") for server in servers)

    def failure(self, error: Exception) -> Exception:
        """The error of ours for one of the library's."""
        where, stream = self.place, self._options.stream
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        name = type(error).__name__
        if name == "NoServersError" and self._refusal is not None:
            return FatalError(
                f"NATS at {where} refuses the user: {self._refusal}",
                suggestion="check the user and the password in `url`, or `credentials`",
            )
        if name == "NotFoundError":
            return FatalError(
                f"NATS at {where} has no stream {stream!r}", suggestion="create it, or check stream and account"
            )
        if name in ("BadRequestError", "AuthorizationError") or "authorization" in str(error).lower():
            return FatalError(
                f"the stream {stream!r} of NATS at {where}: {what}",
                suggestion="check the credentials, and that the consumer of this group was made by conduit-py",
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return FatalError(f"the certificate of NATS at {where} is not trusted: {what}", suggestion="check ca_file")
        return TransientError(
            f"NATS at {where} cannot be reached or does not answer: {what}",
            suggestion="check the url, and that the server runs with JetStream",
        )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        # By its own thread, or its files stay open for as long as anything refers to the loop.
        loop.close()


def load_nats() -> Any:
    try:
        import nats
        import nats.js.api
    except ImportError as error:
        raise FatalError(
            "NATS is used through nats-py, which is not installed", suggestion="pip install 'conduit-dataflow[nats]'"
        ) from error
    return nats
