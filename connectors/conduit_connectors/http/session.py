"""HttpSession: requests as the options of a connector say: headers, credentials, pace, retries and limits."""

import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Self

import httpx2

from conduit_connectors.http.client import AnswerTooLarge, HttpReply, place
from conduit_connectors.http.connection_options import ConnectionOptions
from conduit_connectors.http.credentials import Credentials, make_client
from conduit_connectors.http.guard import AddressRefused
from conduit_connectors.http.pacing import RequestPace, is_transient, send_with_retries
from conduit_py.sdk import FatalError

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class HttpSession:
    """One client from `open` to `teardown` of a connector or processor, for the host of `url`."""

    def __init__(self, options: ConnectionOptions, url: str) -> None:
        self._options = options
        self._client = make_client(options, url)
        self._credentials = Credentials(options, self._client)
        self._pace = RequestPace(options.requests_per_second)
        self._rng = random.Random()

    async def send(
        self,
        method: str,
        url: httpx2.URL,
        body: bytes | None = None,
        *,
        defaults: Mapping[str, str] = _NO_HEADERS,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> HttpReply:
        """Make one request, without retries. Headers of the options win over `defaults`, and `headers` over those."""
        given = {name.lower(): value.get_secret_value() for name, value in self._options.headers.items()}
        allowed = {**defaults, **given, **_lower(headers), **await self._credentials.headers()}
        try:
            return await self._client.send(method, url, allowed, body)
        except (AddressRefused, AnswerTooLarge) as error:
            raise FatalError(f"{place(url)}: {error}", suggestion="check url and response_size_max") from error

    async def request(
        self,
        attempt: Callable[[], Awaitable[HttpReply]],
        url: httpx2.URL,
        transient: Callable[[int], bool] = is_transient,
    ) -> HttpReply:
        """Return the first answer that is final. A token that was refused is renewed once."""
        reply = await send_with_retries(
            attempt, place(url), retries=self._options.retries, pace=self._pace, rng=self._rng, transient=transient
        )
        return await attempt() if reply.status == 401 and self._credentials.reject() else reply

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
