"""The OpenSearch connector: documents of an index or a data stream, written by `_bulk` requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Required, Self, Unpack

import httpx2
import msgspec
from pydantic import Field, model_validator

from conduit_connectors.http.client import HttpReply, place
from conduit_connectors.http.connection_options import ConnectionArguments, ConnectionOptions, HttpUrl
from conduit_connectors.http.pacing import is_transient, retry_after_seconds
from conduit_connectors.http.session import HttpSession
from conduit_py.sdk import (
    AckMode,
    Batch,
    Data,
    Dataset,
    DestinationConnector,
    FatalError,
    KeptOrder,
    Operation,
    Record,
    RecordRefused,
    TransientError,
    WriteGuarantee,
    encode_json,
)
from conduit_py.sdk.template import option_error

_ID_SIZE_MAX: Final = 512
_VERSION_MAX: Final = 2**63 - 1
_BUSY: Final = 429
_LINES: Final = {"content-type": "application/x-ndjson"}
# Only what is looked at: an answer has a long object for each document otherwise.
_WANTED: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason"


class DestinationOptions(ConnectionOptions):
    """Which index, and by which id a document is found again."""

    url: HttpUrl = Field(description="the server, as https://host:9200")
    index: str = Field(
        pattern=r"^[^A-Z\\/*?\"<>| ,#:_+.\-][^A-Z\\/*?\"<>| ,#:]{0,200}$", description="the index, or the data stream"
    )
    id: Literal["delivery", "key"] = Field(
        default="delivery",
        description="the `_id`: of the delivery, so that each record is a document; or the key of the record",
    )
    version_field: str | None = Field(
        default=None, min_length=1, description='with id="key": the field with a number that grows with each change'
    )
    batch_records_max: int = Field(default=1000, ge=1, description="the most records in a request")
    batch_bytes_max: int = Field(default=5 * 2**20, ge=1, description="about the most bytes in a request")

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        if self.version_field is not None and self.id != "key":
            raise option_error('has version_field, which needs id="key"')
        return self


class DestinationArguments(ConnectionArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    index: Required[str]
    id: Literal["delivery", "key"]
    version_field: str | None
    batch_records_max: int
    batch_bytes_max: int


class _BulkAction(msgspec.Struct, frozen=True):
    """The lines of one record in a request, and what it asks for: create, index or delete."""

    kind: str
    lines: bytes


class _ItemError(msgspec.Struct):
    """Why a document is not written."""

    type: str = ""
    reason: str | None = None


class _BulkItem(msgspec.Struct):
    """What became of one document."""

    status: int
    error: _ItemError | None = None


class _BulkAnswer(msgspec.Struct):
    """The answer to a request."""

    items: list[dict[str, _BulkItem]]
    errors: bool = False


class Destination(DestinationConnector[DestinationOptions]):
    """Writes each record as a document, in order. Idempotent by `_id`: exactly-once in an exactly-once pipeline.

    With `id="delivery"` each record is a document, created under its delivery key, which is the same after every
    restart: one that is there is left alone. It works with data streams too, whose documents need a field `@timestamp`.

    With `id="key"` a document is what the last record with its key says, and a delete removes it. That is idempotent
    with `version_field`: what is older than the document is passed over. Without it the guarantee is at-least-once:
    after a crash a document may go back to an earlier record for a moment.

    A document that the index refuses is a dead letter with the reason. Requests and documents that are answered with
    429 or 5xx are tried again, and stop the pipeline in the end. A record is acked when the server has written it
    (`index.translog.durability`, by default on the disk).
    """

    acks = AckMode.WRITE
    _session: HttpSession | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at_server(str(self.options.url), self.options.index, port=9200)]

    @property
    def guarantee(self) -> WriteGuarantee:  # type: ignore[override]
        options = self.options if self._options is not None else None
        repeats = options is not None and options.id == "key" and options.version_field is None
        return WriteGuarantee.AT_LEAST_ONCE if repeats else WriteGuarantee.IDEMPOTENT

    @property
    def order(self) -> KeptOrder:
        # Each shard shows its documents at a time of its own.
        return KeptOrder.KEY

    async def probe(self) -> str:
        async with HttpSession(self.options, self.options.url) as session:
            reply = await session.send("GET", self._url_of("_count"))
        if reply.status == 404:
            return f"there is no index {self.options.index} yet; the server may create it"
        if reply.status != 200:
            raise self._failure(reply)
        return f"the index has {msgspec.json.decode(reply.body, type=dict[str, Any])['count']} documents"

    async def open(self) -> None:
        self._session = HttpSession(self.options, self.options.url)

    async def write(self, batch: Batch) -> dict[int, str] | None:
        refused: dict[int, str] = {}
        actions: dict[int, _BulkAction] = {}
        for index, record in enumerate(batch):
            try:
                actions[index] = self._encode(batch, index, record)
            except RecordRefused as error:
                refused[index] = error.message
        for group in self._groups(actions):
            await self._write(group, refused)
        return refused or None

    async def teardown(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _encode(self, batch: Batch, index: int, record: Record) -> _BulkAction:
        options, after = self.options, record.payload.after
        if record.operation is Operation.DELETE:
            if options.id != "key":
                raise RecordRefused('is a delete, which needs id="key"')
            return _BulkAction("delete", encode_json({"delete": self._target(record, record.payload.before)}) + b"\n")
        if not isinstance(after, dict):
            kind = "no payload.after" if after is None else "raw bytes (json.decode makes them structured)"
            raise RecordRefused(f"has {kind}, and a document needs structured data")
        kind = "create" if options.id == "delivery" else "index"
        target = {"_id": batch.delivery_key(index).hex()} if kind == "create" else self._target(record, after)
        return _BulkAction(kind, encode_json({kind: target}) + b"\n" + encode_json(after) + b"\n")

    def _target(self, record: Record, content: Data) -> dict[str, Any]:
        """The id and the version of a document that is found by its key."""
        target: dict[str, Any] = {"_id": _id_of(record.key)}
        name = self.options.version_field
        if name is not None:
            version = content.get(name) if isinstance(content, dict) else None
            if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= _VERSION_MAX:
                raise RecordRefused(f"has no version in the field {name!r}: a whole number that is not negative")
            target |= {"version": version, "version_type": "external_gte"}
        return target

    def _groups(self, actions: Mapping[int, _BulkAction]) -> Iterator[dict[int, _BulkAction]]:
        group: dict[int, _BulkAction] = {}
        size = 0
        for index, action in actions.items():
            full = (
                len(group) >= self.options.batch_records_max or size + len(action.lines) > self.options.batch_bytes_max
            )
            if group and full:
                yield group
                group, size = {}, 0
            group[index] = action
            size += len(action.lines)
        if group:
            yield group

    async def _write(self, group: dict[int, _BulkAction], refused: dict[int, str]) -> None:
        """Write documents in one request. One that the server refuses as a whole is divided."""
        body = b"".join(action.lines for action in group.values())
        url, session = self._url_of("_bulk"), self._session
        assert session is not None, "opened"

        async def attempt() -> HttpReply:
            reply = await session.send("POST", url.copy_merge_params({"filter_path": _WANTED}), body, headers=_LINES)
            busy = reply.status == 200 and any(is_transient(item.status) for item in _items_of(reply))
            # The request as a whole is made again: what is written already is found by its id.
            return msgspec.structs.replace(reply, status=_BUSY) if busy else reply

        reply = await session.request(attempt, url)
        if reply.status == 200:
            for index, item in zip(group, _items_of(reply), strict=True):
                why = self._refusal(group[index].kind, item)
                if why is not None:
                    refused[index] = why
        elif reply.status not in (400, 413):
            raise self._failure(reply)
        elif len(group) == 1:
            refused.update(dict.fromkeys(group, f"the server answers {reply.status} {reply.excerpt!r}"))
        else:
            entries, middle = list(group.items()), len(group) // 2
            await self._write(dict(entries[:middle]), refused)
            await self._write(dict(entries[middle:]), refused)

    def _refusal(self, kind: str, item: _BulkItem) -> str | None:
        """Why a document is refused; None if it is written, or was before."""
        status, error = item.status, item.error or _ItemError()
        if status < 300 or (kind == "delete" and status == 404 and item.error is None):
            return None
        if status == 409 and (kind == "create" or self.options.version_field is not None):
            return None
        reason = "".join(each if each.isprintable() else " " for each in error.reason or "")[:300]
        if error.type == "index_not_found_exception" or status in (401, 403):
            raise FatalError(
                f"the index {self.options.index} takes no documents: {error.type}: {reason}",
                suggestion="create it, or check its blocks and the rights of the user",
            )
        return f"OpenSearch refuses it: {status} {error.type}: {reason}"

    def _failure(self, reply: HttpReply) -> Exception:
        what = f"{place(httpx2.URL(self.options.url))} answers {reply.status} {reply.excerpt!r}"
        if is_transient(reply.status):
            return TransientError(
                what, suggestion="check that the server is well", retry_after=retry_after_seconds(reply.headers)
            )
        return FatalError(what, suggestion="check url, index and the credentials")

    def _url_of(self, what: str) -> httpx2.URL:
        return httpx2.URL(f"{self.options.url.rstrip('/')}/{self.options.index}/{what}")


def _items_of(reply: HttpReply) -> Sequence[_BulkItem]:
    try:
        answer = msgspec.json.decode(reply.body, type=_BulkAnswer)
    except msgspec.MsgspecError as error:
        raise FatalError(
            f"{place(httpx2.URL(reply.url))} does not answer as OpenSearch does: {error}", suggestion="check url"
        ) from error
    return [item for each in answer.items for item in each.values()]


def _id_of(key: Data) -> str:
    """The `_id` for a key: its text, or the only value in it, or its JSON with the fields in the order of names."""
    if key is None or key == b"" or key == {}:
        raise RecordRefused('has no key, which id="key" needs')
    only = next(iter(key.values())) if isinstance(key, dict) and len(key) == 1 else None
    try:
        if isinstance(key, bytes):
            text = key.decode()
        elif isinstance(only, str | int) and not isinstance(only, bool) and only != "":
            text = str(only)
        else:
            text = encode_json(dict(sorted(key.items()))).decode()
        size = len(text.encode())
    except (UnicodeError, ValueError) as error:
        raise RecordRefused("has a key that is no text, and cannot be an id") from error
    if size > _ID_SIZE_MAX:
        raise RecordRefused(f"has a key of {size} bytes, and an id may have {_ID_SIZE_MAX}")
    return text
