"""EndpointSource: a source that takes requests of HTTP clients, which a server passes on."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec

from conduit_py.sdk.plugin import OptionsT
from conduit_py.sdk.source import SourceConnector

HAS_SERVER: Final = ContextVar("HAS_SERVER", default=False)
"""True in a server, and so in every task of its pipelines."""


class HttpRequest(Protocol):
    """A request whose body has not been read yet."""

    @property
    def method(self) -> str: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers in order, with names in lower case."""
        ...

    async def read_body(self, size_max: int) -> bytes:
        """Return the whole body. Raises ValueError if it is longer, ConnectionError if the client left.

        Raises TimeoutError if it does not arrive in time.
        """
        ...


class HttpAnswer(msgspec.Struct, frozen=True):
    """What a client is answered."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class EndpointSource(SourceConnector[OptionsT]):
    """Its clients send records, and it answers when a record is durable.

    `conduit-py serve` passes on what is sent to `/hooks/PIPELINE/SOURCE` on its own port. It does not check who sends
    it: the source does. Where no server passes requests on, the source listens itself, or `open` says what is missing.
    """

    in_process = True
    drops_repeats: bool = False
    """True if a record that a client sends again arrives once. Clients send again whatever was not answered."""

    @property
    def has_server(self) -> bool:
        """True if a server passes requests on to the sources of this process."""
        return HAS_SERVER.get()

    @abstractmethod
    async def answer_request(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request: one that says yes only when what it brought is durable.

        Called while the pipeline runs, beside all other methods, and any number of times at once: the source decides
        how many may wait. It is cancelled when the client leaves. When the run ends, it must return without delay.
        """

    async def background(self) -> None:
        """Run beside `read`, and be cancelled when everything that was read is settled: to listen, for example."""
