"""Redaction: the secrets that this process has read, and how they are masked in any text before it leaves.

A text is redacted before it is stored, cut or summarised: a part of a password is not recognised, but tells much of it.
The second half has the forms in which a secret may appear: lines of it, the password of a URL, and their encodings.
"""

import base64
import html
import json
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_plus, unquote

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

    @property
    def values(self) -> frozenset[str]:
        """Every value, for another process that has to mask them too."""
        with self._lock:
            return frozenset(self._values)

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


LENGTH_MIN: Final = 4
"""Shorter values occur inside ordinary words: masking them would hide nothing and garble everything."""
ENCODED_LENGTH_MIN: Final = 6
LINE_LENGTH_MIN: Final = 8
LONG: Final = 1024
"""From this length on a secret is found by its pieces of CHUNK characters, up to LENGTH_MAX of it."""
CHUNK: Final = 64
LENGTH_MAX: Final = 64 * 1024
_PLAIN: Final = {"true", "false", "none", "null"}


def forms_of(value: str) -> set[str]:
    """Every form of a value; none for one that is too short or too common to be a secret."""
    found: set[str] = set()
    for part in _parts(value):
        if len(part) < LENGTH_MIN or part.lower() in _PLAIN:
            continue
        if len(part) < LONG:
            found |= _encodings(part)
            continue
        part = part[:LENGTH_MAX]
        # Whole as well, in few forms: the last piece is shorter than the others and too short to be one of them.
        found |= {part, repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
        for start in range(0, len(part) - CHUNK + 1, CHUNK):
            found |= _encodings(part[start : start + CHUNK])
    return found


def _parts(value: str) -> set[str]:
    """The value, each longer line of it, and the secrets in it if it is a URL or a list of settings."""
    lines = [line for line in value.splitlines() if len(line.strip()) >= LINE_LENGTH_MIN] if "\n" in value else []
    return {value, value.strip(), *lines, *(line.strip() for line in lines), *secrets_in_text(value)}


def secrets_in_text(text: str) -> set[str]:
    """The passwords and tokens in a URL, or in settings such as `host=a password=b`, as written and decoded.

    A password with a delimiter in it also counts by its pieces, which a client takes for a host or a port and quotes.
    """
    if "://" not in text and not _SETTINGS.match(text):
        return set()
    found: set[str] = set()
    for password in (*_passwords(text), *(match[1].strip("'") for match in _SETTING.finditer(text))):
        for form in (password, unquote(password)):
            pieces = [piece for piece in _DELIMITERS.split(form) if len(piece) >= LENGTH_MIN]
            # In lower case too: what is taken for a host name is quoted so.
            found |= {form, *pieces, *(piece.lower() for piece in pieces)}
    return found


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


SECRET_NAMES = r"secret|passw(?:or)?d|passphrase|token|(?:access|account|api|shared).?key|[.]sas[.]|authorization"
"""What the name of a setting has in it if its value is a secret, as a regular expression of Python and of Java."""
_SECRET_NAME = re.compile(SECRET_NAMES, re.IGNORECASE)
_SETTINGS = re.compile(r"\s*[A-Za-z_.]+\s*=")
_SETTING = re.compile(rf"[\w.-]*(?:{SECRET_NAMES})[\w.-]*\s*=\s*('[^']*'|[^\s&;,'\"]+)", re.IGNORECASE)
_AFTER_SCHEME = re.compile(r"://([^\s'\"<>]+)")
_DELIMITERS = re.compile(r"[@/:?#\[\]&;=,\s]+")
_PORT = re.compile(r"\d{1,5}(?:[/?#,]|$)")
_TOKEN_LENGTH_MIN = 20


def _passwords(text: str) -> Iterator[str]:
    for found in _AFTER_SCHEME.finditer(text):
        userinfo = _userinfo(found[1])
        user, colon, password = userinfo.partition(":")
        if colon and not _PORT.match(password):
            yield password
        # A user's name is no secret, but an access token may stand in its place.
        elif not colon and len(user) >= _TOKEN_LENGTH_MIN and "/" not in user:
            yield user


def _userinfo(rest: str) -> str:
    # Up to the last @ before a query, or at all: people write passwords with / and @ and ? in them as they are.
    head = re.split(r"[?#]", rest, maxsplit=1)[0]
    return (head if "@" in head else rest).rpartition("@")[0]


def _encodings(text: str) -> set[str]:
    # An environment variable that is not UTF-8 has surrogates in it.
    raw = text.encode(errors="surrogatepass")
    in_json = json.dumps(text)[1:-1]
    # Between both kinds of quotes Python escapes the single ones; between one kind it escapes none.
    escaped = repr(f"'{text}\"")[3:-2]
    in_urls = {quote(raw, safe=safe) for safe in ("/", "", "!#$%&'()*+,/:;=?@[]~", "!$&'()*+,;=")} | {quote_plus(raw)}
    found = {
        text,
        html.escape(text),
        escaped,
        escaped.replace("\\'", "'"),
        ascii(text)[1:-1],
        repr(raw)[2:-1],
        in_json,
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(in_json)[1:-1],
        in_json.replace("/", "\\/"),
        *in_urls,
        *(_PERCENT.sub(lambda match: match[0].lower(), each) for each in in_urls),
    }
    return found | {form for form in (raw.hex(), raw.hex().upper(), *_base64(raw)) if len(form) >= ENCODED_LENGTH_MIN}


_PERCENT = re.compile("%[0-9A-F]{2}")


def _base64(raw: bytes) -> Iterator[str]:
    """The value in base64 alone, and the characters of it that are sure when it stands inside something longer."""
    yield base64.b64encode(raw).decode("ascii")
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw).decode("ascii").rstrip("=")
        # The first and the last character may also encode bits of what stands next to the value.
        sure = whole[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        yield sure
        yield sure.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
