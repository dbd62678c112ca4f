"""The NATS destination: messages of a JetStream stream, each confirmed by the server."""

import asyncio
from typing import Any, ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr, field_validator

from conduit_connectors.message_content import (
    KeyWindowDestination,
    MessageArguments,
    MessageContent,
    MessageOptions,
    encode_messages,
)
from conduit_connectors.nats.connection import NatsArguments, NatsConnection, NatsOptions, load_nats
from conduit_py.sdk import AckMode, Batch, Dataset, FatalError, TransientError
from conduit_py.sdk.template import option_error

_TOO_LARGE = 10054
"""The code of the server for a message that is larger than the stream takes."""
_IN_FLIGHT_MAX = 1000


class DestinationOptions(NatsOptions, MessageOptions):
    """Which stream, and under which subject."""

    subject: str = Field(
        min_length=1, pattern=r"^[^*>\s]+$", description="the subject of the messages, which the stream must take"
    )
    answer_seconds: float = Field(default=30.0, gt=0, description="how long the server may take to store a batch")
    window_covers_restarts: bool = Field(
        default=False,
        description="whether the pipeline always starts again within the stream's `duplicate_window`: then nothing is "
        "doubled",
    )

    @field_validator("metadata")
    @classmethod
    def _check_headers(cls, names: list[str]) -> list[str]:
        for name in names:
            if not name.isascii() or not name.isprintable() or ":" in name or " " in name or not name:
                raise option_error(f"must be names of headers (there is {name!r})")
            if name.lower().startswith("nats-"):
                raise option_error(f"must not name a header of the server ({name!r}): a record would steer it")
        return names


class DestinationArguments(NatsArguments, MessageArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    stream: Required[str]
    subject: Required[str]
    answer_seconds: float
    window_covers_restarts: bool


class Destination(KeyWindowDestination[DestinationOptions]):
    """Publishes each record to a JetStream stream, in order, and acks it when the server has stored it.

    At-least-once. The header `Nats-Msg-Id` has the delivery key, which is the same after every restart: a record that
    is written again within the `duplicate_window` of the stream (two minutes by default) is stored once.
    With `window_covers_restarts=True` that counts as idempotent, and exactly-once pipelines may use it: a pipeline
    that starts again later than the window stores what was not acked twice.

    Metadata named in `metadata` are headers. A record that is larger than the server or the stream takes is refused
    alone. Once the stream is full and discards what is new, the pipeline waits.
    """

    requires: ClassVar = {"nats": "conduit-dataflow[nats]"}
    acks: ClassVar[AckMode] = AckMode.WRITE
    _connection: NatsConnection | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at_server(self.options.url.get_secret_value(), self.options.stream, port=4222)]

    def probe(self) -> str:
        connection = NatsConnection(self.options)
        try:
            connection.open()
            return connection.run(self._look(connection))
        finally:
            connection.close()

    def open(self) -> None:
        # Without reconnecting: a message lost on the way would be followed by those after it.
        self._connection = NatsConnection(self.options)
        self._connection.open(reconnects=False)
        self._connection.run(self._look(self._connection))
        self._connection.run(self._listen(self._connection))

    def write(self, batch: Batch) -> dict[int, str]:
        connection = self._connection
        assert connection is not None, "opened"
        messages, refused = encode_messages(batch, self.options)
        found = list(messages.items())
        for start in range(0, len(found), _IN_FLIGHT_MAX):
            refused |= connection.run(self._publish(connection, batch, dict(found[start : start + _IN_FLIGHT_MAX])))
        return refused

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _look(self, connection: NatsConnection) -> str:
        options, jetstream = self.options, connection.jetstream()
        found = await jetstream.stream_info(options.stream)
        taking: str | None = None
        try:
            taking = await jetstream.find_stream_name_by_subject(options.subject)
        except load_nats().js.errors.NotFoundError:
            pass
        if taking != options.stream:
            raise FatalError(
                f"the stream {options.stream!r} of NATS at {connection.place} does not take {options.subject!r}",
                suggestion="check subject, and the subjects of the stream",
            )
        return f"the stream has {found.state.messages} messages"

    async def _listen(self, connection: NatsConnection) -> None:
        """Subscribe to the server's answers. Each message gets an address of its own for its answer."""
        # Not by `publish_async` of the library: it never ends for a message that the server does not store.
        self._inbox = connection.client.new_inbox()
        self._answers: dict[int, _Stored | None] = {}
        self._missing = 0
        self._complete = asyncio.Event()
        await connection.client.subscribe(f"{self._inbox}.*", cb=self._take_answer)

    async def _take_answer(self, message: Any) -> None:
        index = int(message.subject.rpartition(".")[2])
        if self._answers.get(index, _NOBODY) is None:
            # The server answers without content for a subject that no stream takes any more.
            self._answers[index] = msgspec.json.decode(message.data, type=_Stored) if message.data else _NOBODY
            self._missing -= 1
            if not self._missing:
                self._complete.set()

    async def _publish(
        self, connection: NatsConnection, batch: Batch, messages: dict[int, MessageContent]
    ) -> dict[int, str]:
        """Publish messages, and wait until each is stored or refused."""
        options, client = self.options, connection.client
        refused: dict[int, str] = {}
        fitting: dict[int, MessageContent] = {}
        for index, message in messages.items():
            why = _unfit(message, client.max_payload)
            if why is None:
                fitting[index] = message
            else:
                refused[index] = why
        self._answers, self._missing = dict.fromkeys(fitting), len(fitting)
        self._complete.clear()
        for index, message in fitting.items():
            headers = {"Nats-Expected-Stream": options.stream, "Nats-Msg-Id": batch.delivery_key(index).hex()}
            await client.publish(
                options.subject, message.body, f"{self._inbox}.{index}", headers=message.attributes | headers
            )
        if fitting:
            await self._wait(connection)
        for index, stored in self._answers.items():
            error = stored.error if stored else None
            if error is None:
                continue
            if error.err_code == _TOO_LARGE:
                refused[index] = f"has {len(messages[index].body)} bytes, which is more than the stream takes"
                continue
            raise TransientError(
                f"NATS at {connection.place} does not store a message: {error.description}",
                suggestion="check the limits of the stream, and that its server is well",
            )
        return refused

    async def _wait(self, connection: NatsConnection) -> None:
        """Wait for all answers. Raises TransientError if the connection is lost, or time runs out."""
        assert connection.lost is not None
        lost, complete = (asyncio.ensure_future(each.wait()) for each in (connection.lost, self._complete))
        try:
            await asyncio.wait([lost, complete], timeout=self.options.answer_seconds, return_when="FIRST_COMPLETED")
            if self._missing:
                seconds = f"{self.options.answer_seconds:g} s"
                what = "the connection was lost" if connection.lost.is_set() else f"no answer in {seconds}"
                raise TransientError(
                    f"NATS at {connection.place}: {what}", suggestion="check that the server runs and can be reached"
                )
        finally:
            lost.cancel()
            complete.cancel()


class _StoreError(msgspec.Struct):
    """Why a message is not stored."""

    err_code: int = 0
    description: str = ""


class _Stored(msgspec.Struct):
    """The server's answer to a message."""

    error: _StoreError | None = None


_NOBODY = _Stored(_StoreError(description="no stream takes its subject"))


def _unfit(message: MessageContent, size_max: int) -> str | None:
    """Why the server would not take a message; None if it would."""
    size = len(message.body)
    for name, value in message.attributes.items():
        if "\r" in value or "\n" in value:
            return f"has a line break in its metadata {name!r}, which cannot be a header"
        size += len(name) + len(value.encode()) + 4
    # What the headers of every message need.
    size += 200
    return f"has {size} bytes with its headers, and the server takes {size_max}" if size > size_max else None
