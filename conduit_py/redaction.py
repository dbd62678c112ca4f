"""Redaction: the secrets that this process knows, and how they are masked in any text before it leaves.

A text is redacted before it is stored, cut or summarised: a part of a password is not recognised, but tells much of it.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from conduit_py.secret_forms import forms_of

MASK: Final = b"***"
PREFIX_LENGTH: Final = 8
MEMORY_MAX: Final = 256 * 1024 * 1024
"""What RE2 may use at most. It uses some MB, but with less it would refuse to be quick for thousands of secrets."""


class Secrets:
    """Masks every value that was added to it, wherever a text quotes it, as `***`.

    A secret is recognised by its value, not by the name of an option, so it does not matter what prints it: a log,
    an error of a client library, a response of the API. It is also masked as it appears in JSON, in Python's repr, in a
    URL, in base64 and in hexadecimal; so are its longer lines, and the password of a URL. The time to redact a
    text grows with its length, not with the number of secrets. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: set[str] = set()
        self._forms: set[str] = set()
        self._matcher: _Matcher | None = None

    def add(self, *values: str) -> None:
        """Remember values until the process ends: an error that quotes one may be logged much later."""
        # Files are loaded in threads, and two of them may add secrets at once.
        with self._lock:
            new = set(values) - self._values
            self._values |= new
            forms = {form for value in new for form in forms_of(value)}
            if not forms <= self._forms:
                self._forms |= forms
                # Built when it is needed next: a server may add thousands of secrets before it prints one line.
                self._matcher = None

    def redact(self, text: str) -> str:
        """The text with every known value masked."""
        if not self._forms:
            return text
        # Read once and without the lock: another thread may replace it meanwhile.
        matcher = self._matcher or self._build()
        raw = _encode(text)
        masked = _mask(raw, matcher.find(raw))
        return text if masked is raw else masked.decode("utf-8", "surrogatepass")

    def _build(self) -> "_Matcher":
        with self._lock:
            if self._matcher is None:
                self._matcher = _Matcher(map(_encode, self._forms))
            return self._matcher


class _Span(NamedTuple):
    start: int
    end: int


class _Matcher:
    """Finds forms in a text, in time that does not depend on their number.

    RE2 finds where one may begin: a whole alternation of thousands of long forms would take it too much memory.
    """

    def __init__(self, forms: Iterable[bytes]) -> None:
        # Imported late: every command imports this module, also one that has no secrets.
        import re2

        self._by_prefix: dict[bytes, list[bytes]] = {}
        for form in forms:
            self._by_prefix.setdefault(form[:PREFIX_LENGTH], []).append(form)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        options = re2.Options()
        # Bytes are compared, not characters.
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = MEMORY_MAX
        options.never_capture = True
        self._pattern: Any = re2.compile(b"|".join(map(re2.escape, sorted(self._by_prefix))), options)

    def find(self, raw: bytes) -> Iterator[_Span]:
        """The longest form at each place where one begins, in order. Those of different places may overlap."""
        at = 0
        while (found := self._pattern.search(raw, at)) is not None:
            start = found.start()
            if length := max(self._lengths_at(raw, start), default=0):
                yield _Span(start, start + length)
            # Not behind it: the next secret may begin inside this one.
            at = start + 1

    def _lengths_at(self, raw: bytes, start: int) -> Iterator[int]:
        for length in self._lengths:
            for form in self._by_prefix.get(raw[start : start + length], ()):
                if raw.startswith(form, start):
                    yield len(form)


def _mask(raw: bytes, spans: Iterable[_Span]) -> bytes:
    """The text with all of these masked; those that overlap or touch get one mask. The same object without any."""
    parts: list[bytes] = []
    shown_until = 0
    for start, end in spans:
        # Of two secrets that overlap, what only the second one covers is masked as well.
        if not parts or start > shown_until:
            parts += (raw[shown_until:start], MASK)
        shown_until = max(shown_until, end)
    return b"".join([*parts, raw[shown_until:]]) if parts else raw


def _encode(text: str) -> bytes:
    # An environment variable or a file name that is not UTF-8 has lone surrogates in it.
    return text.encode("utf-8", "surrogatepass")


SECRETS: Final = Secrets()
"""The secrets of this process."""


def redact(text: str) -> str:
    """The text with every secret of this process masked."""
    return SECRETS.redact(text)
