"""Secrets: values that must never be printed, and how they are masked in any text."""

import base64
import json
import re
import threading
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
LENGTH_MIN: Final = 4
"""Shorter values occur inside ordinary words: masking them would hide nothing and garble everything."""
LINE_LENGTH_MIN: Final = 8
_PLAIN: Final = {"true", "false", "none", "null"}


class Secrets:
    """Masks every value that was added to it, wherever a text quotes it, as `***`.

    A secret is recognised by its value, not by the name of an option, so it does not matter what prints it: a log,
    an error of a client library, a response of the API. It is also masked as it appears in JSON, in Python's repr, in a
    URL and in base64, and so is each longer line of it alone. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        """Remember a value until the process ends: an error that quotes it may be logged much later."""
        forms = _forms(value)
        # Files are loaded in threads, and two of them may add secrets at once.
        with self._lock:
            if forms <= self._forms:
                return
            self._forms |= forms
            # The longest first, or a secret that begins with another one would be masked only in part.
            longest_first = sorted(self._forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """The text with every known value masked."""
        # Read once and without the lock: another thread may replace it meanwhile.
        pattern = self._pattern
        return text if pattern is None else pattern.sub(MASK, text)


def _forms(value: str) -> set[str]:
    """The forms in which a value may appear in a text; none for one that is too short or too common to be a secret."""
    lines = [line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN] if "\n" in value else []
    found: set[str] = set()
    for text in (value, value.strip(), *lines):
        if len(text) < LENGTH_MIN or text.lower() in _PLAIN:
            continue
        # An environment variable that is not UTF-8 has surrogates in it.
        raw = text.encode(errors="surrogatepass")
        found |= {
            text,
            repr(text)[1:-1],
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            quote(raw),
            quote(raw, safe=""),
            quote_plus(raw),
            base64.b64encode(raw).decode("ascii"),
        }
    return found


SECRETS: Final = Secrets()
"""The secrets of this process."""


def redact(text: str) -> str:
    """The text with every secret of this process masked."""
    return SECRETS.redact(text)
