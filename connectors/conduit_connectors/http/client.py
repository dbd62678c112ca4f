"""GuardedClient: one request and its whole answer, with limits, over connections that the guard allows."""

import ssl
from collections.abc import Mapping
from typing import Final

import httpcore2
import httpx2
import msgspec
import trio

from conduit_connectors.http.guard import AddressRefused, GuardedTransport, HostGuard
from conduit_py.sdk import FatalError, TransientError

REDIRECTS_MAX: Final = 5
LINK_SIZE_MAX: Final = 8192
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_FAILURES: Final = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.ConnectionNotAvailable,
    httpx2.HTTPError,
    httpx2.StreamError,
    OSError,
)


class AnswerTooLarge(Exception):
    """The answer is longer than allowed."""


class HttpReply(msgspec.Struct, frozen=True):
    """A whole answer. The names of headers are compared without case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def excerpt(self) -> str:
        """The beginning of the body for a message: one line of printable characters."""
        text = self.body[:300].decode(errors="replace")
        return "".join(each if each.isprintable() else " " for each in text).strip()[:200]


class GuardedClient:
    """Makes requests. Everything that is wrong with the way to the peer is a TransientError, except its certificate."""

    def __init__(
        self, guard: HostGuard, *, timeout_seconds: float, size_max: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.guard = guard
        self._seconds = timeout_seconds
        self._size_max = size_max
        self._http = httpx2.AsyncClient(
            transport=GuardedTransport(guard, tls), timeout=timeout_seconds, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], content: bytes | None = None
    ) -> HttpReply:
        """Make one request. Raises AddressRefused, AnswerTooLarge, FatalError for TLS, else TransientError."""
        self.guard.check_url(url)
        # Not compressed: a small answer that unpacks to gigabytes would have to be unpacked to be refused.
        wanted = {"accept-encoding": "identity", "user-agent": "conduit-py"} | {
            k.lower(): v for k, v in headers.items()
        }
        try:
            # All of the answer at once: the time-outs of the library are for each of its parts.
            with trio.fail_after(self._seconds):
                async with self._http.stream(method, url, headers=wanted, content=content) as answer:
                    return HttpReply(answer.status_code, answer.headers, await self._read(answer), str(url))
        except trio.TooSlowError:
            raise TransientError(
                f"{place(url)} did not answer within {self._seconds:g} s",
                suggestion="check that it is well, or allow more time with timeout_seconds",
            ) from None
        except _FAILURES as error:
            raise _failure(url, error) from error

    async def follow(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], content: bytes | None = None
    ) -> HttpReply:
        """Make a request and those that redirects ask for, within what the guard allows for links."""
        at = url
        for _ in range(REDIRECTS_MAX + 1):
            reply = await self.send(method, at, headers, content)
            location = reply.headers.get("location")
            if reply.status not in _REDIRECTS or location is None:
                return reply
            link = join(at, location)
            self.guard.check_link(link, url)
            if link.host != at.host:
                headers = {name: value for name, value in headers.items() if name.lower() not in _CREDENTIALS}
            if reply.status == 303 or (reply.status in (301, 302) and method == "POST"):
                method, content = "GET", None
            at = link
        raise TransientError(
            f"{place(url)} answers with more than {REDIRECTS_MAX} redirects", suggestion="check the URL"
        )

    async def _read(self, answer: httpx2.Response) -> bytes:
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise FatalError(
                f"{place(answer.url)} answers with the encoding {answer.headers['content-encoding'][:40]!r}, "
                "though none was asked for",
                suggestion="have the server respect Accept-Encoding: identity",
            )
        body = bytearray()
        async for chunk in answer.aiter_raw():
            body += chunk
            if len(body) > self._size_max:
                raise AnswerTooLarge(f"{place(answer.url)} answers with more than {self._size_max} bytes")
        return bytes(body)


def join(base: httpx2.URL, link: str) -> httpx2.URL:
    """Return a link of an answer as a whole URL. Raises AddressRefused if it is none, or too long."""
    try:
        # Not cut: half a cursor may be one of another page.
        url = base.join(link).copy_with(fragment=None) if len(link) <= LINK_SIZE_MAX else None
    except (httpx2.InvalidURL, ValueError, TypeError) as error:
        raise AddressRefused(f"is no URL ({error})") from error
    if url is None or len(str(url)) > LINK_SIZE_MAX:
        raise AddressRefused(f"is longer than {LINK_SIZE_MAX} characters")
    return url


def place(url: httpx2.URL) -> str:
    """Return a URL for messages: without its query, which may have secrets."""
    return f"{url.scheme}://{url.netloc.decode(errors='replace')}{url.path}"[:300]


def _failure(url: httpx2.URL, error: Exception) -> Exception:
    cause: BaseException | None = error
    for _ in range(10):  # a chain of causes may be a ring
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FatalError(
                f"the certificate of {place(url)} is not trusted: {cause.verify_message}",
                suggestion="check the URL, and ca_file",
            )
        if cause is None:
            break
        cause = cause.__cause__ or cause.__context__
    return TransientError(
        f"{place(url)} cannot be reached: {str(error)[:300] or type(error).__name__}",
        suggestion="check the URL and that the server runs",
    )
