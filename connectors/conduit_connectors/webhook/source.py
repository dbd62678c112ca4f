"""The webhook source: a request is answered 2xx when its records are durable, and not before."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Unpack

import msgspec
import trio

from conduit_connectors.webhook.delivered_keys import DeliveredKeys, KeyedPosition, hash_key, number_of
from conduit_connectors.webhook.listener import Listener
from conduit_connectors.webhook.signature import signature_error
from conduit_connectors.webhook.source_options import SourceArguments, SourceOptions
from conduit_py.sdk import (
    Columns,
    EncodedPositions,
    EndOfSource,
    EndpointSource,
    FatalError,
    HttpAnswer,
    HttpRequest,
    Payloads,
    Record,
    RecordRefused,
    decode_json,
    metadata,
)

RETRY_SECONDS = "5"
TOO_MUCH = "too much is not durable yet"
RECORD_SIZE = 1024
"""What a record takes besides its part of the body, about: bodies may have a few bytes, or a thousand records."""
ITEMS_MAX = 1000
"""The most records of one request: an array of a few megabytes could have a million."""


class Source(EndpointSource[SourceOptions]):
    """The records that clients send with POST, in the order of their arrival.

    A request is answered 200 when all its records are durable: delivered to all destinations, or kept as dead letters,
    and the position saved. Until then it waits. If the pipeline stops or fails, and after `answer_seconds`, it is
    answered 503, and the sender has to send it again. So nothing is lost that was answered 200.

    At-least-once: a sender that got no answer repeats. With `key_header` or `key_path`, repeats are dropped: the names
    of the last `keys_max` records are committed with the position. So each record arrives once in an exactly-once
    pipeline, if the sender repeats it before so many others.
    """

    repeatable = False

    _reason = "is not open"
    """Why it takes no requests; empty while it does."""

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def endless(self) -> bool:
        return True

    @property
    def gives(self) -> Any:
        return bytes if self.options.body == "raw" else dict[str, Any]

    @property
    def drops_repeats(self) -> bool:  # type: ignore[override]
        return self._options is not None and (self.options.key_header or self.options.key_path) is not None

    async def open(self, position: bytes | None) -> None:
        options = self.options
        if options.listen is None and not self.has_server:
            raise FatalError(
                "no server passes requests on to this source",
                suggestion='run it with `conduit-py serve`, or give the source a port: listen="127.0.0.1:8081"',
            )
        self._keys = DeliveredKeys(options.keys_max, position, keyed=self.drops_repeats)
        self._number = 0 if position is None else number_of(position)
        self._durable = self._number
        self._ready: deque[tuple[KeyedPosition, Record]] = deque()
        self._arrival = trio.Event()
        self._in_flight: deque[tuple[int, bytes | None, int]] = deque()
        """The number, the key and the size of each record that is not durable."""
        self._size = 0
        """The sum of their sizes. A request that gave up waiting leaves its records here."""
        self._numbers: dict[bytes, int] = {}
        """The numbers of records that are in flight, by their keys."""
        self._waiting: dict[trio.Event, int] = {}
        """The requests that wait for a record of this number."""
        self._requests = 0
        self._listener = await Listener.bind(options) if options.listen is not None else None
        self._reason = ""

    def check_position(self, position: bytes) -> None:
        DeliveredKeys(1, position)

    async def background(self) -> None:
        if self._listener is not None:
            await self._listener.serve(self.answer_request)

    async def read(self, n: int) -> Payloads:
        while not self._ready:
            if self._reason:
                raise EndOfSource
            self._arrival = trio.Event()
            await self._arrival.wait()
        taken = [self._ready.popleft() for _ in range(min(n, len(self._ready)))]
        # Not as bytes: each position has all keys that are remembered, and few are ever stored.
        positions = EncodedPositions([position for position, _ in taken])
        columns = Columns(keys=[each.key for _, each in taken], metadata=[each.metadata for _, each in taken])
        kind = bytes if self.options.body == "raw" else dict
        return Payloads([each.payload.after for _, each in taken], positions, kind, columns)

    async def ack(self, positions: Sequence[bytes]) -> None:
        self._durable = max(self._durable, number_of(positions[-1]))
        while self._in_flight and self._in_flight[0][0] <= self._durable:
            number, key, size = self._in_flight.popleft()
            self._size -= size
            if key is not None and self._numbers.get(key) == number:
                del self._numbers[key]
        for event, number in list(self._waiting.items()):
            if number <= self._durable:
                event.set()

    async def stop(self) -> None:
        self._reason = "is stopping"
        self._arrival.set()

    async def teardown(self) -> None:
        self._reason = "has stopped"
        for event in list(getattr(self, "_waiting", ())):
            event.set()
        listener = getattr(self, "_listener", None)
        if listener is not None:
            await listener.close()

    async def answer_request(self, request: HttpRequest) -> HttpAnswer:
        options = self.options
        if request.method != "POST":
            return _answer(405, "send records with POST", {"allow": "POST"})
        if self._reason:
            return _busy(f"the source {self._reason}")
        # Before the body is read: what waits is bounded in bytes too.
        if self._requests >= options.waiting_max:
            return _busy("too many requests wait here")
        if self._is_full:
            return _busy(TOO_MUCH)
        self._requests += 1
        try:
            return await self._take(request)
        except ValueError:
            return _answer(413, f"the body is longer than {options.body_size_max} bytes")
        except TimeoutError:
            return _answer(408, "the body did not arrive in time")
        except ConnectionError:
            return _answer(400, "the body did not arrive")
        finally:
            self._requests -= 1

    async def _take(self, request: HttpRequest) -> HttpAnswer:
        options, headers = self.options, request.headers
        length = next((value for name, value in headers if name == "content-length"), "0")
        if length.isdigit() and int(length[:20]) > options.body_size_max:
            raise ValueError(length)
        body = await request.read_body(options.body_size_max)
        if (error := signature_error(options, headers, body)) is not None:
            return _answer(401, error)
        try:
            records = self._parse(headers, body)
        except RecordRefused as refused:
            return _answer(400, refused.message)
        # The source may have been stopped while the body was on its way.
        if self._reason:
            return _busy(f"the source {self._reason}")
        if self._is_full and any(self._is_new(key) for key, _ in records):
            # It was not when the body was asked for: others came before. A repeat adds nothing, and may wait.
            return _busy(TOO_MUCH)
        accepted, number = self._accept(records, len(body))
        if not await self._wait_for(number):
            return _busy("the records are not durable yet")
        return HttpAnswer(200, msgspec.json.encode({"accepted": accepted, "repeated": len(records) - accepted}))

    def _parse(self, headers: Sequence[tuple[str, str]], body: bytes) -> list[tuple[bytes | None, Record]]:
        """Return the records of a request with the hashes of their keys. Raises RecordRefused."""
        options = self.options
        name = None
        if options.key_header is not None:
            name = next((value for each, value in headers if each == options.key_header.lower()), "")
            if not name:
                raise RecordRefused(f"there is no header {options.key_header}")
        values: list[Any] = [body]
        if options.body != "raw":
            values = _objects(decode_json(body), several=options.body == "array")
        if len(values) > min(ITEMS_MAX, options.keys_max):
            raise RecordRefused(f"more than {min(ITEMS_MAX, options.keys_max)} records in one request")
        wanted = {each.lower() for each in options.keep_headers}
        kept = {f"webhook.header.{each}": value for each, value in headers if each in wanted}
        kept |= metadata.trace_headers(dict(headers))
        return [self._record(index, value, name, kept) for index, value in enumerate(values)]

    def _record(self, index: int, value: Any, name: str | None, kept: dict[str, str]) -> tuple[bytes | None, Record]:
        # A header names the whole request: each record of an array is named by its index too.
        found: Any = f"{name}\n{index}"
        if self.options.key_path is not None:
            found = self.options.key_path.find(value)
            if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
                raise RecordRefused(f"record {index} has no text or number at {str(self.options.key_path)!r}")
            name = str(found)
        record = Record.of(value, key=None if name is None else name.encode(errors="replace"))
        record.metadata.update(kept)
        if name is None:
            return None, record
        return hash_key(found), record

    @property
    def _is_full(self) -> bool:
        return self._size >= self.options.waiting_max * (self.options.body_size_max + RECORD_SIZE)

    def _is_new(self, key: bytes | None) -> bool:
        return key is None or (key not in self._keys and key not in self._numbers)

    def _accept(self, records: Sequence[tuple[bytes | None, Record]], body_size: int) -> tuple[int, int]:
        """Queue what is new. Returns how many that are, and the number of the record to wait for."""
        accepted, wait_for = 0, 0
        for key, record in records:
            if key is not None and not self._is_new(key):
                # Sent again while it is on its way, or after it became durable: then there is nothing to wait for.
                wait_for = max(wait_for, self._numbers.get(key, 0))
                continue
            self._number = wait_for = self._number + 1
            accepted += 1
            if key is not None:
                self._keys.add(key)
                self._numbers[key] = self._number
            size = RECORD_SIZE + body_size // len(records) + sum(map(len, record.metadata.values()))
            self._in_flight.append((self._number, key, size))
            self._size += size
            self._ready.append((self._keys.position(self._number), record))
        self._arrival.set()
        return accepted, wait_for

    async def _wait_for(self, number: int) -> bool:
        """Return True when the record of this number is durable; False if it takes too long, or the source ends."""
        event = trio.Event()
        if number > self._durable:
            self._waiting[event] = number
            try:
                with trio.move_on_after(self.options.answer_seconds):
                    await event.wait()
            finally:
                del self._waiting[event]
        return number <= self._durable


def _objects(value: Any, *, several: bool) -> list[Any]:
    values = value if several else [value]
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise RecordRefused(f"the body must be {'an array of objects' if several else 'an object'}")
    return values


def _answer(status: int, message: str, headers: dict[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode({"error": message}), headers or {})


def _busy(message: str) -> HttpAnswer:
    return _answer(503, message, {"retry-after": RETRY_SECONDS})
