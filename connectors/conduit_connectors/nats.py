"""The NATS connector: reads work from a JetStream stream, shared by the workers of one consumer."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Required, TypeVar, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_py.sdk import FatalError, TransientError
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

T = TypeVar("T")

_CONSUMER = "conduit-py"
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_REST_SECONDS = 0.1
"""How long to wait for more messages after the first one."""


class SourceOptions(ObjectQueueOptions):
    """Which stream, and what its messages are. `group` names the durable consumer too."""

    url: SecretStr = Field(description="the server, as nats://user:password@host:port; several with commas between")
    stream: str = Field(min_length=1, pattern=r"^[^.*>\s]+$", description="the stream, which must exist")
    subject: str | None = Field(default=None, description="only messages of this subject; wildcards are allowed")
    credentials: str | None = Field(default=None, description="the path of a credentials file")
    wait_seconds: float = Field(default=1.0, gt=0, description="how long one request waits for messages")
    pending_max: int = Field(default=10_000, ge=1, description="how many messages all workers may hold together")


class SourceArguments(QueueArguments, ObjectArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    stream: Required[str]
    subject: str | None
    credentials: str | None
    wait_seconds: float
    pending_max: int


class Source(QueueSource[SourceOptions]):
    """Messages of a JetStream stream, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object. The durable
    pull consumer is created when missing. Workers of a group must have the same `commit_seconds`: it decides
    how long the server leaves a message with a worker.
    """

    requires: ClassVar = {"nats": "conduit-dataflow[nats]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def probe(self) -> str:
        return NatsQueue(self.options, 1.0).probe()

    def queue(self) -> LeasedQueue:
        return NatsQueue(self.options, self.options.terms.longest_seconds)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class NatsQueue(LeasedQueue):
    """Every lease is `lease_seconds` long, and at least as long as requested: a consumer has one length for all.

    The library needs an asyncio event loop, which runs in a thread of this class. The protocol lets an old handle
    ack a message too. That is harmless, because nothing is acked before its commit.
    """

    receive_max = 256

    def __init__(self, options: SourceOptions, lease_seconds: float) -> None:
        self._options = options
        self._lease_seconds = lease_seconds
        self._consumer = (options.group or _CONSUMER).translate(str.maketrans(".*> \t/\\", "-------"))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._pull: Any = None
        self._refusal: Exception | None = None

    def open(self) -> None:
        _nats()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nats", daemon=True).start()
        self._run(self._connect())

    def probe(self) -> str:
        """Return what is there, without creating a consumer."""
        _nats()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nats", daemon=True).start()
        try:
            return self._run(self._look())
        finally:
            self.close()

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        return self._run(self._fetch(count))

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        if lease_seconds > self._lease_seconds:
            raise ValueError(f"a lease of {lease_seconds} s is longer than the {self._lease_seconds} s of the consumer")
        self._run(self._tell(delivery, b"+WPI"))

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        self._run(self._ack(deliveries))

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._leave(), loop).result(_ANSWER_SECONDS)
            finally:
                loop.call_soon_threadsafe(loop.stop)

    async def _look(self) -> str:
        await self._reach()
        found = await self._client.jetstream(timeout=_ANSWER_SECONDS).stream_info(self._options.stream)
        return f"the stream has {found.state.messages} messages"

    async def _reach(self) -> None:
        nats, options = _nats(), self._options
        servers = [server.strip() for server in options.url.get_secret_value().split(",")]
        self._client = await nats.connect(
            servers, user_credentials=options.credentials, allow_reconnect=True, max_reconnect_attempts=3,
            reconnect_time_wait=1, connect_timeout=5, name="conduit-py", error_cb=self._note_error,
        )  # fmt: skip

    async def _connect(self) -> None:
        nats, options = _nats(), self._options
        await self._reach()
        jetstream = self._client.jetstream(timeout=_ANSWER_SECONDS)
        config = nats.js.api.ConsumerConfig(
            durable_name=self._consumer,
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=self._lease_seconds,
            filter_subject=options.subject,
            max_ack_pending=options.pending_max,
        )
        await jetstream.add_consumer(options.stream, config)
        self._pull = await jetstream.pull_subscribe_bind(self._consumer, options.stream)

    async def _note_error(self, error: Exception) -> None:
        """Keep why the server refuses the user: the next call raises only that there is no server."""
        if "authorization" in str(error).lower():
            self._refusal = error

    async def _leave(self) -> None:
        if self._client is not None:
            await self._client.close()
        # A `receive` whose caller was cancelled may still wait in its thread: end it, or the thread never ends.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _fetch(self, count: int) -> list[QueueDelivery]:
        # A fetch of several waits until all are there, so fetch one first, then what else is there.
        messages = await self._pulled(1, self._options.wait_seconds)
        if messages and count > 1:
            messages += await self._pulled(count - 1, _REST_SECONDS)
        return [self._delivery(message) for message in messages]

    async def _pulled(self, count: int, seconds: float) -> list[Any]:
        try:
            messages: list[Any] = await self._pull.fetch(count, timeout=seconds)
        except TimeoutError:
            if not self._client.is_connected:
                raise
            return []
        return messages

    def _delivery(self, message: Any) -> QueueDelivery:
        about = message.metadata
        number = about.sequence.stream
        attributes = {"nats.subject": message.subject} | dict(message.headers or {})
        return QueueDelivery(f"{about.stream}/{number}", message.reply, message.data, about.num_delivered, attributes)

    async def _ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        await asyncio.gather(*(self._tell(delivery, b"+ACK") for delivery in deliveries))

    async def _tell(self, delivery: QueueDelivery, what: bytes) -> None:
        """Send an ack or a progress mark for a message and wait for the server to confirm it."""
        if not self._client.is_connected:
            raise ConnectionError("the connection is lost")
        if what == b"+ACK":
            await self._client.request(delivery.handle, what, timeout=_ANSWER_SECONDS)
        else:
            await self._client.publish(delivery.handle, what)
            await self._client.flush(_ANSWER_SECONDS)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        assert loop is not None, "the queue is not open"
        answer = asyncio.run_coroutine_threadsafe(work, loop)
        while not concurrent.futures.wait([answer], _LOOK_SECONDS).done:
            # A call that reached the loop just before it stopped never completes.
            if self._loop is not loop:
                raise self._failed(ConnectionError("the queue was closed"))
        try:
            return answer.result()
        except Exception as error:  # the plugin boundary: the library's errors have no common base class
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        options = self._options
        servers = [server.strip().rpartition("@")[2] for server in options.url.get_secret_value().split(",")]
        where = ", ".join(server.removeprefix("nats://") for server in servers)
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        name = type(error).__name__
        if name == "NoServersError" and self._refusal is not None:
            return FatalError(
                f"NATS at {where} refuses the user: {self._refusal}",
                suggestion="check the user and the password in `url`, or `credentials`",
            )
        if name == "NotFoundError":
            return FatalError(
                f"NATS at {where} has no stream {options.stream!r}", suggestion="create it, or check stream and account"
            )
        if name in ("BadRequestError", "AuthorizationError") or "authorization" in str(error).lower():
            return FatalError(
                f"the stream {options.stream!r} of NATS at {where}: {what}",
                suggestion="check the credentials, and that the consumer of this group was made by conduit-py",
            )
        return TransientError(
            f"NATS at {where} cannot be reached or does not answer: {what}",
            suggestion="check the url, and that the server runs with JetStream",
        )


def _nats() -> Any:
    try:
        import nats
        import nats.js.api
    except ImportError as error:
        raise FatalError(
            "NATS is used through nats-py, which is not installed", suggestion="pip install 'conduit-dataflow[nats]'"
        ) from error
    return nats
