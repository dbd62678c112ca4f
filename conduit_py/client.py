"""Client and AsyncClient: the HTTP API of a server from Python, with typed answers."""

import json
import ssl
from collections.abc import AsyncGenerator, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from conduit_py.defaults import URL
from conduit_py.errors import ConduitError, EnvironmentUnfit
from conduit_py.lazy_names import lazy_names
from conduit_py.wire_error import ServerRefused, WireError

if TYPE_CHECKING:
    from conduit_py.client_api import Api, DroppedEvent, FleetEvent, LetterSelection, PipelineEvent, RecordEvent

# On first use: these import the server, which the commands do without.
_LATE = ("Api", "DroppedEvent", "FleetEvent", "LetterSelection", "PipelineEvent", "RecordEvent")
__all__ = [
    "Api",
    "ApiCall",
    "AsyncClient",
    "Client",
    "DroppedEvent",
    "FleetEvent",
    "LetterSelection",
    "PipelineEvent",
    "RecordEvent",
    "ServerRefused",
    "ServerUnreachable",
    "Stream",
]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0

AnswerT = TypeVar("AnswerT")


class ServerUnreachable(EnvironmentUnfit):
    """No server answers at the address, or one that is not conduit-py."""

    code = "server.unreachable"


@dataclass(frozen=True)
class ApiCall(Generic[AnswerT]):
    """A request below `/api/v1/`, and the type of its answer."""

    answer: type[AnswerT]
    method: str
    path: tuple[str, ...]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Stream(Generic[AnswerT]):
    """A request below `/api/v1/` for events, and their types by the names of the events."""

    answers: Mapping[str, type[AnswerT]]
    path: tuple[str, ...]
    query: Mapping[str, Any] | None = None


class _Answers:
    """What both clients make of answers: values of a type, or an error with what to do."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def _settings(self, token: str | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {token}"} if token else {},
            "timeout": httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            "verify": (tls or ssl.create_default_context()) if self.url.startswith("https") else False,
            # A proxy that the environment names would see the token, and often cannot reach this machine.
            "trust_env": False,
        }

    def _advice(self, error: WireError) -> str | None:
        return error.suggestion

    def _way_to(self, error: httpx2.HTTPError) -> str:
        return "start one with `conduit-py serve`, or give the address of one"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TimeoutException as error:
            raise ServerUnreachable(
                f"the server at {self.url} does not answer", suggestion="look at its log"
            ) from error
        except httpx2.HTTPError as error:
            raise ServerUnreachable(
                f"cannot reach a server at {self.url}: {error}", suggestion=self._way_to(error)
            ) from error

    def _plain(self, response: httpx2.Response) -> Any:
        try:
            answer = response.json()
        except ValueError:
            raise self._foreign(response) from None
        if response.is_success and isinstance(answer, dict | list):
            return answer
        error = WireError.from_fields(answer.get("error")) if isinstance(answer, dict) else None
        if error is None:
            raise self._foreign(response)
        raise ServerRefused(error, self._advice(error))

    def _typed(self, kind: type[AnswerT], answer: Any) -> AnswerT:
        try:
            read: AnswerT = _adapter(cast(Hashable, kind)).validate_python(answer)
            return read
        except ValidationError as error:
            raise ServerUnreachable(
                f"the server at {self.url} answers otherwise than this version expects: {error}",
                suggestion="use the same version of conduit-dataflow here and there",
            ) from error

    def _refusal(self, response: httpx2.Response) -> ConduitError:
        """The error in an answer that should have been a stream."""
        try:
            self._plain(response)
        except ConduitError as error:
            return error
        return self._foreign(response)

    def _foreign(self, response: httpx2.Response) -> ServerUnreachable:
        return ServerUnreachable(
            f"the server at {self.url} is not a conduit-py server (HTTP status {response.status_code})",
            suggestion="give the server's address with --url or CONDUIT_URL",
        )


class Client(_Answers):
    """A server, by calls that block. Answers have types; every error is a ConduitError with what to do.

    `tls` has the certificates to trust and to show; without it those of this machine are trusted.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        super().__init__(url)
        self._http = httpx2.Client(**self._settings(token, tls), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(self, call: ApiCall[AnswerT]) -> AnswerT:
        """Send a request of `Api` and return the answer."""
        return self._typed(call.answer, self.request(call.method, *call.path, body=call.body, query=call.query))

    def follow(self, stream: Stream[AnswerT]) -> Generator[AnswerT, None, None]:
        """The events of a stream of `Api`, until the server ends it. Events of names that are not known are skipped."""
        for name, data in self.stream(*stream.path, query=stream.query):
            if name in stream.answers:
                yield self._typed(stream.answers[name], data)

    def request(
        self, method: str, *path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `/api/v1/` and the path, and return the answer as plain values."""
        with self._reaching():
            response = self._http.request(method, _path(path), json=body, params=query)
        return self._plain(response)

    def stream(
        self, *path: str, query: Mapping[str, Any] | None = None
    ) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Server-sent events, each with its name, until the server ends the stream."""
        with self._reaching(), self._http.stream("GET", _path(path), params=query) as response:
            if not _has_events(response):
                response.read()
                raise self._refusal(response)
            events = _EventLines()
            for line in response.iter_lines():
                if event := events.read(line):
                    yield event


class AsyncClient(_Answers):
    """The same for trio and asyncio."""

    def __init__(
        self,
        url: str = URL,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url)
        self._http = httpx2.AsyncClient(**self._settings(token, tls), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, call: ApiCall[AnswerT]) -> AnswerT:
        """Send a request of `Api` and return the answer."""
        with self._reaching():
            response = await self._http.request(call.method, _path(call.path), json=call.body, params=call.query)
        return self._typed(call.answer, self._plain(response))

    async def follow(self, stream: Stream[AnswerT]) -> AsyncGenerator[AnswerT, None]:
        """The events of a stream of `Api`, until the server ends it. Close it, as with `contextlib.aclosing`."""
        events = _EventLines()
        with self._reaching():
            async with self._http.stream("GET", _path(stream.path), params=stream.query) as response:
                if not _has_events(response):
                    await response.aread()
                    raise self._refusal(response)
                async for line in response.aiter_lines():
                    name, data = events.read(line) or ("", {})
                    if name in stream.answers:
                        yield self._typed(stream.answers[name], data)


def _has_events(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-type", "").partition(";")[0] == "text/event-stream")


class _EventLines:
    """Takes server-sent events apart, line by line."""

    def __init__(self) -> None:
        self._name = ""

    def read(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """The name and data of an event, if the line completes one."""
        if line.startswith("event:"):
            self._name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            return self._name, json.loads(line.removeprefix("data:"))
        return None


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def _path(parts: tuple[str, ...]) -> str:
    # Dots too: httpx2 would resolve an id `..` as the folder above, which is another endpoint.
    return "/api/v1/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)


__getattr__, __dir__ = lazy_names(__name__, {"conduit_py.client_api": _LATE})
