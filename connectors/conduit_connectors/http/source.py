"""The HTTP source: polls an API page by page, and continues where it was."""

import hashlib
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Unpack

import httpx2
import msgspec
import trio

from conduit_connectors.http.client import AnswerTooLarge, GuardedClient, HttpReply, place
from conduit_connectors.http.credentials import Credentials, make_client
from conduit_connectors.http.guard import AddressRefused
from conduit_connectors.http.pacing import RequestPace, is_transient, retry_after_seconds, send_with_retries
from conduit_connectors.http.page import read_page
from conduit_connectors.http.paging import PollState, next_page, request_url
from conduit_connectors.http.source_options import SourceArguments, SourceOptions
from conduit_py.sdk import (
    CheckpointedSource,
    Dataset,
    EndOfSource,
    FatalError,
    Fetched,
    NothingYet,
    Record,
    SourceCheckpoint,
    TransientError,
    UnreadableRecord,
)

log = logging.getLogger("conduit_py")

NOTHING_TO_CONTINUE: Final = (
    "%s was read to its end by an earlier run, and this run reads nothing: nothing says what is new. Set since_param, "
    'use paging="offset" for a list that grows at its end, or set poll_seconds and let it run'
)


class Source(CheckpointedSource[SourceOptions]):
    """The records of an API, page by page: one pass, or a pass every `poll_seconds`.

    Resumes after any record. The position is the request of the page and the index in it. That is exactly-once in an
    exactly-once pipeline if a page has the same records each time. A page that changed is given again from its
    beginning: records are repeated, and none of the page is skipped. At-least-once otherwise.

    With `since_param`, a pass begins at the highest value of the pass before. With `paging="offset"` and without it, a
    pass continues behind what was read: such a list must only grow at its end. With neither, each pass of
    `poll_seconds` gives everything again, and a run without it reads nothing if an earlier run has read to the end: it
    logs a warning. Of a list that is read by page or offset, records that move between pages meanwhile may be
    skipped: prefer a cursor, links or `since_param`.
    """

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at(str(self.options.url))]

    _client: GuardedClient | None = None

    @property
    def endless(self) -> bool:
        return self.options.poll_seconds is not None

    @property
    def gives(self) -> Any:
        return dict[str, Any]

    def check_position(self, position: bytes) -> None:
        super().check_position(position)
        PollState.decode(msgspec.json.decode(position)["checkpoint"], self.options)

    async def probe(self) -> str:
        """Ask for the first page, once."""
        url = request_url(PollState.decode(None, self.options), self.options)
        self._connect()
        try:
            reply = self._expect_success(await self._attempt(url, url), url)
        finally:
            await self.teardown()
        return f"{place(url)} answers {reply.status} with {len(reply.body)} bytes"

    async def resume(self, checkpoint: Any) -> None:
        self._state = PollState.decode(checkpoint, self.options)
        self._page: deque[Record | UnreadableRecord | SourceCheckpoint] = deque()
        self._met: set[bytes] = set()
        """Hashes of the requests of this pass."""
        self._poll_at = trio.current_time()
        self._has_paused = False
        self._opened_done = self._state.done
        if self._client is None:
            self._connect()

    def _connect(self) -> None:
        options = self.options
        self._client = make_client(options, options.url)
        self._credentials = Credentials(options, self._client)
        self._pace = RequestPace(options.requests_per_second)
        self._rng = random.Random()

    async def fetch(self, n: int) -> Fetched:
        if not self._page:
            if self._state.done:
                await self._wait_for_pass()
            await self._fetch_page()
        taken: list[Record | UnreadableRecord | SourceCheckpoint] = []
        while self._page and (len(taken) < n or isinstance(self._page[0], SourceCheckpoint)):
            taken.append(self._page.popleft())
        return taken

    async def _wait_for_pass(self) -> None:
        """Return when the next pass begins. Raises EndOfSource if there is none."""
        options = self.options
        opened_done, self._opened_done = self._opened_done, False
        continues = options.since_param is not None or options.paging == "offset"
        if options.poll_seconds is None and not (opened_done and continues):
            if opened_done:
                log.warning(NOTHING_TO_CONTINUE, place(httpx2.URL(options.url)))
            raise EndOfSource
        if not self._has_paused and trio.current_time() < self._poll_at:
            # Once, before a long wait: what was read must not wait for a pass that may bring nothing.
            self._has_paused = True
            raise NothingYet
        await trio.sleep_until(self._poll_at)
        self._has_paused = False
        self._met.clear()
        self._state = self._state.beginning()

    async def _fetch_page(self) -> None:
        options, state = self.options, self._state
        url = request_url(state, options)
        reply = await self._request(url)
        items, body = read_page(reply, options)
        fresh: list[Record | UnreadableRecord | SourceCheckpoint] = []
        for item in items:
            value, name = self._since_of(item)
            known = state.recognising(value, name)
            state = known or state.noticing(value, name)
            if known is None:
                fresh.append(item)
        following = self._check(lambda: next_page(state, options, reply, body, len(items)), url)
        if following is None:
            state = state.ending(options)
            self._poll_at = trio.current_time() + (options.poll_seconds or 0)
        else:
            state = msgspec.structs.replace(state, next=following)
            self._refuse_loop(state)
        # No await from here on: a cancelled fetch must leave everything as it was.
        self._page.extend([*fresh, SourceCheckpoint(state.encode())])
        self._state = state

    def _since_of(self, item: Record | UnreadableRecord) -> tuple[str | int | float | None, str]:
        """Return the value of a record for `since_param`, and its hash."""
        path = self.options.since_path
        if path is None or isinstance(item, UnreadableRecord):
            return None, ""
        value = path.find(item.payload.after)
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise FatalError(
                f"a record has a {type(value).__name__} at since_path {str(path)!r}",
                suggestion="choose a field with a number, or a text that sorts, such as 2026-11-17T03:00:00Z",
            )
        return value, hashlib.blake2b(self.fingerprint(item), digest_size=8).hexdigest()

    def _refuse_loop(self, state: PollState) -> None:
        name = hashlib.blake2b(str(request_url(state, self.options)).encode(), digest_size=16).digest()
        if name in self._met:
            raise FatalError(
                f"{place(httpx2.URL(self.options.url))} leads from page to page in a circle",
                suggestion="check paging, cursor_path and cursor_param: the API gives a page again that was read",
            )
        self._met.add(name)

    async def _request(self, url: httpx2.URL) -> HttpReply:
        assert self._client is not None
        origin = httpx2.URL(self.options.url)
        reply = await send_with_retries(
            lambda: self._attempt(url, origin), place(url), retries=self.options.retries, pace=self._pace, rng=self._rng
        )
        if reply.status == 401 and self._credentials.reject():
            reply = await self._attempt(url, origin)
        return self._expect_success(reply, url)

    def _expect_success(self, reply: HttpReply, url: httpx2.URL) -> HttpReply:
        if 200 <= reply.status < 300:
            return reply
        what = f"{place(url)} answers {reply.status} {reply.excerpt!r}"
        if is_transient(reply.status):
            raise TransientError(
                what,
                suggestion="the server is busy or ill; requests_per_second limits the rate",
                retry_after=retry_after_seconds(reply.headers),
            )
        hint = "check the credentials" if reply.status in (401, 403) else "check url and params"
        raise FatalError(what, suggestion=hint)

    async def _attempt(self, url: httpx2.URL, origin: httpx2.URL) -> HttpReply:
        assert self._client is not None
        self._check(lambda: self._client.guard.check_link(url, origin), url)  # type: ignore[union-attr]
        headers = {name: value.get_secret_value() for name, value in self.options.headers.items()}
        headers |= {"accept": "application/json, application/x-ndjson"} | await self._credentials.headers()
        try:
            return await self._client.follow("GET", url, headers)
        except AddressRefused as error:
            raise self._refused(error, url) from error
        except AnswerTooLarge as error:
            raise FatalError(str(error), suggestion="ask for smaller pages, or raise response_size_max") from error

    def _check(self, call: Callable[[], Any], url: httpx2.URL) -> Any:
        try:
            return call()
        except AddressRefused as error:
            raise self._refused(error, url) from error

    def _refused(self, error: AddressRefused, url: httpx2.URL) -> FatalError:
        return FatalError(
            f"the next page or a redirect of {place(url)} {error}",
            suggestion="if it is right, name the host in allow_hosts: credentials and headers are sent there too",
        )

    async def teardown(self) -> None:
        if self._client is not None:
            await self._client.close()
