"""String functions of sprig: tests, changes, and texts in other clothes."""

import base64
import binascii
import functools
import re
from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.record import decode_json, encode_json
from conduit_py.sdk.template.values import elements, text_of, truth, whole

REGEX: Final = "regexMatch"


@functools.lru_cache(maxsize=256)
def pattern(text: str) -> re.Pattern[str]:
    """A regular expression; what is none raises re.error."""
    return re.compile(text)


def _matches(regex: str, text: Any) -> bool:
    """Whether a pattern, which the template has been checked to write down itself, is in the text."""
    return pattern(regex).search(text_of(text)) is not None


def _truncate(size: Any, text: Any) -> str:
    count, value = whole(size), text_of(text)
    return value[:count] if count >= 0 else value[count:]


def _substring(start: Any, end: Any, text: Any) -> str:
    first, last, value = whole(start), whole(end), text_of(text)
    return value[max(first, 0) : last if last >= 0 else None]


def _decode_base64(text: Any) -> str:
    try:
        return base64.b64decode(text_of(text), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise RecordRefused(f"b64dec: not base64 of text: {error}") from None


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else text_of(value).encode(errors="surrogatepass")


def _quote_all(*values: Any) -> str:
    return " ".join(encode_json(text_of(value)).decode() for value in values if value is not None)


FUNCTIONS: Final = (
    ("contains", lambda part, text: text_of(part) in text_of(text), 2, 2),
    ("hasPrefix", lambda part, text: text_of(text).startswith(text_of(part)), 2, 2),
    ("hasSuffix", lambda part, text: text_of(text).endswith(text_of(part)), 2, 2),
    (REGEX, _matches, 2, 2),
    ("lower", lambda text: text_of(text).lower(), 1, 1),
    ("upper", lambda text: text_of(text).upper(), 1, 1),
    ("trim", lambda text: text_of(text).strip(), 1, 1),
    ("trimAll", lambda characters, text: text_of(text).strip(text_of(characters)), 2, 2),
    ("trimPrefix", lambda part, text: text_of(text).removeprefix(text_of(part)), 2, 2),
    ("trimSuffix", lambda part, text: text_of(text).removesuffix(text_of(part)), 2, 2),
    ("nospace", lambda text: "".join(text_of(text).split()), 1, 1),
    ("replace", lambda old, new, text: text_of(text).replace(text_of(old), text_of(new)), 3, 3),
    ("trunc", _truncate, 2, 2),
    ("substr", _substring, 3, 3),
    ("quote", _quote_all, 0, None),
    ("toString", text_of, 1, 1),
    ("splitList", lambda separator, text: _split(text_of(separator), text_of(text)), 2, 2),
    ("join", lambda separator, items: text_of(separator).join(map(text_of, elements(items))), 2, 2),
    ("b64enc", lambda value: base64.b64encode(_bytes(value)).decode("ascii"), 1, 1),
    ("b64dec", _decode_base64, 1, 1),
    ("toJson", lambda value: encode_json(value).decode(), 1, 1),
    ("fromJson", lambda text: decode_json(text_of(text)) if truth(text) else None, 1, 1),
)


def _split(separator: str, text: str) -> list[str]:
    return text.split(separator) if separator else list(text)
