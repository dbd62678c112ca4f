"""`webhook.http` makes an HTTP request for each record and puts the answer into it."""

import re
from typing import Final, Required, TypedDict, Unpack

import httpx2
import trio
from conduit_connectors.http.client import AnswerTooLarge, GuardedClient, HttpReply, place
from conduit_connectors.http.connection_options import HttpHeaders, check_url
from conduit_connectors.http.guard import AddressRefused, HostGuard, origin_of
from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_py.sdk import Options, Processor, Record, RecordRefused, TransientError
from conduit_py.sdk.template import FieldPath, RecordPart, Template, is_template, option_error

_ORIGIN: Final = re.compile(r"(https?://[^/?#{}]+)(?:[/?#].*)?", re.DOTALL)
_DOTS: Final = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)


class RequestFailed(Exception):
    """No answer, or one that the server failed: the record is refused, or tried again where the node has a retry."""


class HttpOptions(Options):
    """Options of webhook.http."""

    url: Template = Field(description="where to send the request: a template")
    method: str = Field(default="GET", pattern=r"^[A-Za-z]+$", description="the method of the request")
    headers: HttpHeaders = Field(default={}, description="headers of the request; their values are secrets")
    body: Template | None = Field(
        default=None, description="the body: a template, such as {{ toJson . }} for the whole record; without it, none"
    )
    response_body: FieldPath = Field(
        default_factory=lambda: FieldPath.of(".Payload.After"), description="the field that gets the body of the answer"
    )
    response_status: FieldPath | None = Field(default=None, description="the field that gets the status, as text")
    retry_count: float = Field(default=0, ge=0, description="how often a request that failed is made again")
    retry_factor: float = Field(default=2, gt=0, description="by how much each delay is longer than the one before")
    retry_min_seconds: float = Field(default=0.1, ge=0, description="the first delay")
    retry_max_seconds: float = Field(default=5.0, ge=0, description="the longest delay")
    allow_hosts: list[str] = Field(
        default=[],
        description="hosts that records and redirects may name besides that of the URL; private addresses need this",
    )
    timeout_seconds: float = Field(default=30.0, gt=0, description="how long a request and its answer may take")
    response_size_max: int = Field(default=4 * 1024 * 1024, ge=1, description="the longest answer, in bytes")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: Template) -> Template:
        if not is_template(url.text):
            check_url(url.text)
        return url

    @model_validator(mode="after")
    def _check_fields(self) -> "HttpOptions":
        if self.response_status is not None and str(self.response_body) == str(self.response_status):
            raise option_error("has the same field for the body and the status of the answer")
        if _fixed_origin(self.url.text) is None and self.headers and not self.allow_hosts:
            raise option_error(
                "lets records name the host, and would send `headers` to any of them",
                "begin the URL with https://host/, or name the hosts in allow_hosts",
            )
        return self


class HttpArguments(TypedDict, total=False):
    """HttpOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | Template]
    method: str
    headers: dict[str, str | SecretStr]
    body: str | Template | None
    response_body: str | FieldPath
    response_status: str | FieldPath | None
    retry_count: float
    retry_factor: float
    retry_min_seconds: float
    retry_max_seconds: float
    allow_hosts: list[str]
    timeout_seconds: float
    response_size_max: int


class Http(Processor[HttpOptions]):
    """Makes a request for each record and stores the body of the answer, whatever its status below 500.

    A status of 500 or more, or no answer, is tried again as the `retry_…` options say; then the record is refused. A
    record can choose the path and the query of the URL, but not its host, unless the URL begins with a template. Then
    it may name hosts with public addresses; if there are `allow_hosts`, only those.
    """

    blocking = False
    _client: GuardedClient | None = None

    def __init__(self, **options: Unpack[HttpArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        options = self.options
        self._origin = _fixed_origin(options.url.text)
        guard = HostGuard([] if self._origin is None else [self._origin.host], options.allow_hosts)
        self._client = GuardedClient(guard, timeout_seconds=options.timeout_seconds, size_max=options.response_size_max)
        self._headers = {name.lower(): value.get_secret_value() for name, value in options.headers.items()}
        self._headers.setdefault("content-type", "application/json")

    async def process(self, record: Record) -> Record:
        options = self.options
        url = self._url(record)
        body = None if options.body is None else options.body.render(record).encode(errors="replace")
        reply = await self._send_with_retries(url, body)
        is_text = options.response_body.part is RecordPart.METADATA
        options.response_body.set(record, reply.body.decode(errors="replace") if is_text else reply.body)
        if options.response_status is not None:
            options.response_status.set(record, str(reply.status))
        return record

    def _url(self, record: Record) -> httpx2.URL:
        """Return the URL of a record. A record is hostile: it must not lead to another place than was meant."""
        text = self.options.url.render(record)
        try:
            url = httpx2.URL(text)
        except (httpx2.InvalidURL, ValueError) as error:
            raise RecordRefused(f"makes no URL of {text[:100]!r}: {error}") from error
        if is_template(self.options.url.text) and _DOTS.search(text.partition("?")[0].partition("://")[2]):
            raise RecordRefused(f"makes a URL with dots that lead elsewhere: {text[:100]!r}")
        if self._origin is not None and origin_of(url) != origin_of(self._origin):
            raise RecordRefused(f"makes a URL with another host: {text[:100]!r}")
        assert self._client is not None
        if self._origin is None and self.options.allow_hosts and not self._client.guard.is_named(url.host):
            raise RecordRefused(f"names the host {url.host[:100]!r}, which is not in allow_hosts")
        return url

    async def _send_with_retries(self, url: httpx2.URL, body: bytes | None) -> HttpReply:
        options, attempt = self.options, 0
        while True:
            try:
                return await self._send(url, body)
            except RequestFailed:
                if attempt >= options.retry_count:
                    raise
            delay = options.retry_min_seconds * options.retry_factor ** min(attempt, 100)
            await trio.sleep(min(delay, options.retry_max_seconds))
            attempt += 1

    async def _send(self, url: httpx2.URL, body: bytes | None) -> HttpReply:
        assert self._client is not None
        try:
            reply = await self._client.follow(self.options.method.upper(), url, self._headers, body)
        except AddressRefused as error:
            raise RecordRefused(f"{place(url)} {error}") from error
        except AnswerTooLarge as error:
            raise RecordRefused(str(error)) from error
        except TransientError as error:
            raise RequestFailed(error.message) from error
        if reply.status >= 500:
            raise RequestFailed(f"{place(url)} answers {reply.status} {reply.excerpt!r}")
        return reply

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _fixed_origin(text: str) -> httpx2.URL | None:
    """Return the origin that a template has as text, before anything that a record can change; None if it has none."""
    found = _ORIGIN.fullmatch(text)
    # A part right behind the host could become more of the host, or its port.
    return httpx2.URL(found.group(1)) if found is not None else None
