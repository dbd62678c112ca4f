"""Pacing: how fast requests are made, and when one is made again: rate limits, `Retry-After` and back-off."""

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Protocol, TypeVar

import trio

from conduit_py.sdk import TransientError

RETRY_AFTER_MAX_SECONDS: Final = 3600.0
"""The longest wait that an answer can ask for. A hostile one could ask for years."""
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
LOGGED_SECONDS: Final = 10.0
"""A wait that is at least so long is in the log: the pipeline looks idle meanwhile."""
_DELAY_SECONDS: Final = 0.2
_DELAY_MAX_SECONDS: Final = 30.0

log = logging.getLogger("conduit_py")


class PacedReply(Protocol):
    """What is needed of an answer to decide whether the request is made again."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


ReplyT = TypeVar("ReplyT", bound=PacedReply)


class RequestPace:
    """Spaces requests evenly: at most so many in a second. None sets no limit."""

    def __init__(self, requests_per_second: float | None) -> None:
        self._seconds = 1 / requests_per_second if requests_per_second else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Return when the next request may be made."""
        if not self._seconds:
            return
        start = max(trio.current_time(), self._next)
        # Before the wait: several tasks may wait at once, each for a moment of its own.
        self._next = start + self._seconds
        await trio.sleep_until(start)


def is_transient(status: int) -> bool:
    """Return True if the same request may succeed later."""
    return status in TRANSIENT_STATUSES or status >= 500


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return how many seconds an answer asks to wait, itself or by a date; None if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), RETRY_AFTER_MAX_SECONDS)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    seconds = (until - (now or datetime.now(UTC))).total_seconds()
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)


async def send_with_retries(
    attempt: Callable[[], Awaitable[ReplyT]],
    place: str,
    *,
    retries: int,
    pace: RequestPace,
    rng: random.Random,
    transient: Callable[[int], bool] = is_transient,
) -> ReplyT:
    """Return the first answer that is final. Unreachable peers, and statuses that are `transient`, are tried again.

    After `retries` the last answer is returned, or its TransientError raised. `place` is what the log calls the peer.
    """
    for number in range(retries + 1):
        await pace.wait()
        wait: float | None = None
        try:
            reply = await attempt()
            if not transient(reply.status) or number == retries:
                return reply
            wait = retry_after_seconds(reply.headers)
        except TransientError:
            if number == retries:
                raise
        seconds = back_off_seconds(number, rng) if wait is None else wait
        if seconds >= LOGGED_SECONDS:
            log.warning("%s cannot take a request now; the next one is made in %.0f s", place, seconds)
        await trio.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


def back_off_seconds(number: int, rng: random.Random) -> float:
    """Return how long to wait after the failed attempt of this number, the first is 0; half of it is by chance."""
    delay: float = min(_DELAY_SECONDS * 2 ** min(number, 20), _DELAY_MAX_SECONDS)
    return delay * (1 - rng.random() / 2)
