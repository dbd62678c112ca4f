"""The messages between a server and the process of one of its pipelines, and the connection that carries them."""

import struct
from typing import Generic, TypeAlias, TypeVar

import msgspec
import trio

from conduit_py.backoff import Recovery
from conduit_py.status import PipelineState, Stopper
from conduit_py.stream.meter import Progress
from conduit_py.wire_error import WireError

Inbound = TypeVar("Inbound")

FRAME_MAX = 1024 * 1024 * 1024
"""The size limit of a message. A larger length means that the peer is not ours."""


class StartPipeline(msgspec.Struct, frozen=True, tag=True):
    """The first message, from the server: the pickled pipeline, and `sys.path` to import it with."""

    pipeline: bytes
    recovery: str
    """As JSON."""
    path: list[str]
    debug: bool


class StopPipeline(msgspec.Struct, frozen=True, tag=True):
    """From the server: stop gracefully or, with `force`, at once. Sent again when the request becomes stronger."""

    by: Stopper
    force: bool


class LettersQueued(msgspec.Struct, frozen=True, tag=True):
    """From the server: dead letters of the pipeline were queued for replay."""


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    """From the server: the result of a call. A change is durable before this is sent."""

    number: int
    result: bytes = b""
    error: WireError | None = None


class StoreCall(msgspec.Struct, frozen=True, tag=True):
    """From the child: a call of the store."""

    number: int
    name: str
    arguments: bytes


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """From the child, several times a second: the state and progress of the pipeline."""

    state: PipelineState
    progress: Progress


class PipelineEnded(msgspec.Struct, frozen=True, tag=True):
    """The last message, from the child: how the pipeline ended, or why it could not start."""

    state: PipelineState | None = None
    progress: Progress | None = None
    error: WireError | None = None


ToChild: TypeAlias = StartPipeline | StopPipeline | LettersQueued | StoreReply
ToServer: TypeAlias = StoreCall | ProgressReport | PipelineEnded
TO_CHILD = msgspec.msgpack.Decoder(ToChild)
TO_SERVER = msgspec.msgpack.Decoder(ToServer)


def recovery_in(begin: StartPipeline) -> Recovery:
    return Recovery.model_validate_json(begin.recovery)


class ChildLink(Generic[Inbound]):
    """One end of the connection. Messages arrive whole and in the order of sending, or not at all."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, inbound: "msgspec.msgpack.Decoder[Inbound]") -> None:
        self._stream = stream
        self._inbound = inbound
        self._sending = trio.Lock()
        # Kept across calls: a cancelled `receive` must not lose the part of a message that has arrived.
        self._received = bytearray()
        self.ended = False
        """Whether the peer has closed the connection."""

    async def send(self, message: ToChild | ToServer) -> None:
        """Send a message. Raises trio.BrokenResourceError when the peer is gone."""
        data = msgspec.msgpack.encode(message)
        assert len(data) <= FRAME_MAX, f"a message of {len(data)} bytes"
        async with self._sending:
            # After half a message the peer would misread all that follow.
            with trio.CancelScope(shield=True):
                await self._stream.send_all(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Inbound | None:
        """The next message; None when the peer is gone."""
        try:
            head = await self._exactly(_LENGTH.size)
            body = head and await self._exactly(_LENGTH.unpack(head)[0])
        except trio.BrokenResourceError:
            # A peer that was killed resets the connection, which is its end like any other.
            body = None
        self.ended = not body
        return self._inbound.decode(body) if body else None

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def _exactly(self, size: int) -> bytes | None:
        # Before the first byte is awaited: a wrong length would collect data without end.
        assert size <= FRAME_MAX, f"a message of {size} bytes"
        while len(self._received) < size:
            more = await self._stream.receive_some()
            if not more:
                return None
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


_LENGTH = struct.Struct(">I")
