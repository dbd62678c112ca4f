"""The HTTP destination: sends records to an API, one by one or several in a request."""

import hashlib
from collections.abc import Sequence
from typing import Final, Literal, Required, Unpack

import httpx2
from pydantic import Field, ValidationInfo, field_validator, model_validator

from conduit_connectors.http.client import HttpReply, place
from conduit_connectors.http.connection_options import ConnectionArguments, ConnectionOptions, check_url
from conduit_connectors.http.pacing import is_transient, retry_after_seconds
from conduit_connectors.http.session import HttpSession
from conduit_connectors.http.url_template import UrlTemplate, check_template
from conduit_py.sdk import (
    AckMode,
    Batch,
    Dataset,
    DestinationConnector,
    FatalError,
    Record,
    RecordRefused,
    TransientError,
    WriteGuarantee,
    encode_json,
    metadata,
)
from conduit_py.sdk.template import FieldPath, option_error

Grouping = Literal["record", "array", "lines"]
Method = Literal["POST", "PUT", "PATCH", "DELETE"]
_CONTENT_TYPES: Final = {
    "record": "application/json",
    "array": "application/json",
    "lines": "application/x-ndjson",
}


class DestinationOptions(ConnectionOptions):
    """Where records are sent, and in which form."""

    url: str = Field(description="where to send; {parts} of the path or the query come from the record")
    url_parts: dict[str, FieldPath] = Field(
        default={}, validate_default=True, description="the field for each part of the URL, such as id: .Key.id"
    )
    method: Method = Field(default="POST", description="the method of the requests")
    batch: Grouping = Field(
        default="record", description="one record in a request, or several: as a JSON array or as JSON lines"
    )
    batch_records_max: int = Field(default=500, ge=1, description="the most records in a request")
    batch_bytes_max: int = Field(default=1024 * 1024, ge=1, description="about the most bytes in a request")
    body: Literal["payload", "record"] = Field(
        default="payload", description="what is sent: `payload.after`, or the whole record in its JSON form"
    )
    content_type: str | None = Field(default=None, description="the content type, if not that of JSON or JSON lines")
    idempotency_header: str | None = Field(
        default="Idempotency-Key", pattern=r"^[A-Za-z0-9-]+$", description="the header with the delivery key"
    )
    honours_key: bool = Field(
        default=False, description="whether the server ignores a request whose key it has seen: then nothing is doubled"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return url if "{" in url else check_url(url)

    @field_validator("url_parts")
    @classmethod
    def _check_parts(cls, parts: dict[str, FieldPath], info: ValidationInfo) -> dict[str, FieldPath]:
        if "url" in info.data:
            check_url(check_template(info.data["url"], parts).replace("{", "").replace("}", ""))
        return parts

    @model_validator(mode="after")
    def _check_grouping(self) -> "DestinationOptions":
        if self.batch != "record" and self.url_parts:
            raise option_error('has url_parts, which need batch="record": records of one request have one URL')
        if self.honours_key and (self.batch != "record" or self.idempotency_header is None):
            raise option_error(
                'has honours_key, which needs batch="record" and an idempotency_header',
                "the records of a request may be others after a restart, so only a key for each record is the same",
            )
        return self


class DestinationArguments(ConnectionArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    url_parts: dict[str, str | FieldPath]
    method: Method
    batch: Grouping
    batch_records_max: int
    batch_bytes_max: int
    body: Literal["payload", "record"]
    content_type: str | None
    idempotency_header: str | None
    honours_key: bool


class Destination(DestinationConnector[DestinationOptions]):
    """Sends each record, or several together, in order. At-least-once: after a crash records may be sent again.

    With `honours_key=True` each record arrives once, if the server ignores a request whose `Idempotency-Key` it has
    seen: the key of a record is the same after every restart. A record is refused if the answer is 4xx, except 401,
    408, 425 and 429, and with `honours_key` 409: so servers answer while they work on an earlier request with the key,
    which may be ours. A request with several records that is answered so is divided until the refused ones are found;
    the others are sent. Everything else is tried again, and stops the pipeline in the end.
    """

    acks = AckMode.WRITE

    _session: HttpSession | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at(self.options.url)]

    @property
    def guarantee(self) -> WriteGuarantee:  # type: ignore[override]
        # Only the operator can say what the server does with the key.
        honoured = self._options is not None and self.options.honours_key
        return WriteGuarantee.IDEMPOTENT if honoured else WriteGuarantee.AT_LEAST_ONCE

    async def probe(self) -> str:
        """Ask with HEAD, which changes nothing. Servers may refuse the method, but not the credentials."""
        template = UrlTemplate(self.options.url, self.options.url_parts)
        url = httpx2.URL(self.options.url) if template.is_fixed else self._origin()
        async with HttpSession(self.options, str(url)) as session:
            reply = await session.send("HEAD", url)
        if reply.status in (401, 403):
            raise FatalError(f"{place(url)} answers {reply.status} to HEAD", suggestion="check the credentials")
        if reply.status >= 500:
            raise TransientError(f"{place(url)} answers {reply.status} to HEAD", suggestion="check the server")
        return f"{place(url)} answers {reply.status} to HEAD; nothing was sent"

    def _origin(self) -> httpx2.URL:
        """Return the server of a URL that has parts of a record."""
        return httpx2.URL(self.options.url.replace("{", "").replace("}", "")).copy_with(path="/", query=None)

    async def open(self) -> None:
        options = self.options
        self._template = UrlTemplate(options.url, options.url_parts)
        self._session = HttpSession(options, options.url.replace("{", "").replace("}", ""))

    async def write(self, batch: Batch) -> dict[int, str] | None:
        refused: dict[int, str] = {}
        bodies: dict[int, bytes] = {}
        for index, record in enumerate(batch):
            try:
                bodies[index] = self._encode(record)
            except RecordRefused as error:
                refused[index] = error.message
        for indices in self._groups(bodies):
            await self._send(batch, indices, bodies, refused)
        return refused or None

    def _encode(self, record: Record) -> bytes:
        if self.options.body == "record":
            return record.to_json()
        after = record.payload.after
        if after is None:
            raise RecordRefused('has no payload to send (body="record" sends whole records)')
        if isinstance(after, bytes):
            if self.options.batch != "record":
                raise RecordRefused('is raw bytes, which only batch="record" can send')
            return after
        return encode_json(after)

    def _groups(self, bodies: dict[int, bytes]) -> list[list[int]]:
        """Return the indices of the records of each request."""
        options = self.options
        groups: list[list[int]] = []
        size = 0
        for index, body in bodies.items():
            full = (
                not groups or len(groups[-1]) >= options.batch_records_max or size + len(body) > options.batch_bytes_max
            )
            if options.batch == "record" or full:
                groups.append([])
                size = 0
            groups[-1].append(index)
            size += len(body)
        return groups

    async def _send(
        self, batch: Batch, indices: Sequence[int], bodies: dict[int, bytes], refused: dict[int, str]
    ) -> None:
        """Send these records in one request. One that is refused is divided, until the refused records are found."""
        try:
            url = self._template.render(batch.record(indices[0]))
        except RecordRefused as error:
            refused[indices[0]] = error.message
            return
        body = self._body([bodies[each] for each in indices])
        headers = self._headers(batch.delivery_key(indices[0]), body)
        if len(indices) == 1:
            # A request with several records belongs to none of their traces.
            headers |= metadata.trace_headers(batch.record(indices[0]).metadata)
        reply = await self._request(url, headers, body)
        if 200 <= reply.status < 300:
            return
        if self._is_transient(reply.status):
            what = f"{place(url)} answers {reply.status} {reply.excerpt!r}"
            raise TransientError(what, retry_after=retry_after_seconds(reply.headers))
        if reply.status == 401 or reply.status < 400:
            raise self._unusable(url, reply)
        if len(indices) == 1:
            refused[indices[0]] = f"the server answers {reply.status} {reply.excerpt!r}"
            return
        middle = len(indices) // 2
        await self._send(batch, indices[:middle], bodies, refused)
        await self._send(batch, indices[middle:], bodies, refused)

    def _headers(self, key: bytes, body: bytes) -> dict[str, str]:
        options = self.options
        if options.idempotency_header is None:
            return {}
        # Of several records: that of the first, and what is sent. All their keys would cost more than the request.
        whole = key if options.batch == "record" else hashlib.blake2b(body, digest_size=16, key=key).digest()
        return {options.idempotency_header: whole.hex()}

    def _body(self, bodies: Sequence[bytes]) -> bytes:
        if self.options.batch == "array":
            return b"[" + b",".join(bodies) + b"]"
        return b"\n".join(bodies) + b"\n" if self.options.batch == "lines" else bodies[0]

    async def _request(self, url: httpx2.URL, headers: dict[str, str], body: bytes) -> HttpReply:
        session = self._session
        assert session is not None, "opened"
        defaults = {"content-type": self.options.content_type or _CONTENT_TYPES[self.options.batch]}
        return await session.request(
            lambda: session.send(self.options.method, url, body, defaults=defaults, headers=headers),
            url,
            self._is_transient,
        )

    def _is_transient(self, status: int) -> bool:
        # A conflict with our own earlier request is no refusal: the record may be delivered.
        return is_transient(status) or (status == 409 and self.options.honours_key)

    def _unusable(self, url: httpx2.URL, reply: HttpReply) -> FatalError:
        if reply.status == 401:
            return FatalError(f"{place(url)} answers 401 {reply.excerpt!r}", suggestion="check the credentials")
        # Not followed: most clients would turn a POST into a GET, and the record would be lost.
        where = reply.headers.get("location", "")[:200]
        return FatalError(
            f"{place(url)} answers {reply.status}, a redirect to {where!r}", suggestion="write that address as `url`"
        )

    async def teardown(self) -> None:
        if self._session is not None:
            await self._session.close()
