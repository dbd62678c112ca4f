"""Functions of templates that work on text: tests, changes, encodings, and Go's `printf`."""

import base64
import binascii
import functools
import re
from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.record import decode_json, encode_json
from conduit_py.sdk.template.values import elements, kind_of, number, text_of, truth, whole

REGEX: Final = "regexMatch"


class PatternInvalid(ValueError):
    """A regular expression that cannot be compiled."""

    suggestion = "use the syntax of Go and RE2: it has no look-around, no backreferences and no possessive repeats"


# Bounded: a server that reloads its pipelines for months would otherwise keep every pattern it ever had.
@functools.lru_cache(maxsize=256)
def compile_pattern(text: str) -> Any:
    """Compile a regular expression. Raises PatternInvalid."""
    # RE2, because a pattern of `re` takes exponential time on a text that is made for it, and records bring the text.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text.encode(errors="surrogatepass"), options)
    except re2.error as error:
        [message] = error.args
        raise PatternInvalid(message.decode(errors="replace") if isinstance(message, bytes) else message) from None


def _matches(regex: str, text: Any) -> bool:
    """Return True if the text matches a pattern, which is a literal of the template."""
    return compile_pattern(regex).search(_bytes(text_of(text))) is not None


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


def _quote(value: Any) -> str:
    return encode_json(text_of(value)).decode()


def _quote_all(*values: Any) -> str:
    return " ".join(_quote(value) for value in values if value is not None)


def _split(separator: str, text: str) -> list[str]:
    return text.split(separator) if separator else list(text)


# Few digits for width and precision: %999999999d in a format from a record would fill the memory.
_VERB = re.compile(r"%(?P<flags>[-+ 0#]*)(?P<width>\d{0,3})(?P<precision>\.\d{0,2})?(?P<verb>.|$)", re.DOTALL)


def verbs(format: str) -> list[str]:
    """Return the verbs of a format, one for each argument. Raises ValueError for an unknown verb."""
    found = [match["verb"] for match in _VERB.finditer(format) if match["verb"] != "%"]
    for verb in found:
        if verb not in _WRITERS:
            raise ValueError(f"%{verb} is not one of %{', %'.join(_WRITERS)} and %%")
    return found


def printf(format: Any, *values: Any) -> str:
    """Return the format with its verbs replaced by the values. Refuses the record if their numbers differ."""
    text = text_of(format)
    try:
        count = len(verbs(text))
    except ValueError as error:
        raise RecordRefused(f"printf: {error}") from None
    if count != len(values):
        raise RecordRefused(f"printf: the format has {count} verbs and {len(values)} values")
    # One pass over the format: a value with a % in it must not be read as a verb.
    waiting = iter(values)
    return _VERB.sub(lambda match: "%" if match["verb"] == "%" else _format_verb(match, next(waiting)), text)


def _format_verb(match: re.Match[str], value: Any) -> str:
    python, convert = _WRITERS[match["verb"]]
    flags, width, precision = match["flags"], match["width"], match["precision"] or ""
    try:
        return f"%{flags}{width}{precision}{python}" % (convert(value),)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordRefused(f"printf: {match[0]} cannot show {kind_of(value)}: {error}") from None


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError("true or false is needed")
    return text_of(value)


_WRITERS: Final[dict[str, tuple[str, Any]]] = {
    "s": ("s", text_of),
    "v": ("s", text_of),
    "q": ("s", _quote),
    "t": ("s", _boolean),
    "d": ("d", whole),
    "x": ("x", whole),
    "f": ("f", number),
    "e": ("e", number),
    "g": ("g", number),
}


FUNCTIONS: Final = (
    ("print", lambda *values: "".join(map(text_of, values)), 0, None),
    ("printf", printf, 1, None),
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
