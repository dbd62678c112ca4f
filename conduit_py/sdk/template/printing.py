"""printf: Go's format verbs, as far as they are of use with records."""

import re
from typing import Any, Final

from conduit_py.errors import RecordRefused
from conduit_py.record import encode_json
from conduit_py.sdk.template.values import kind_of, number, text_of, whole

_VERB = re.compile(r"%(?P<flags>[-+ 0#]*)(?P<width>\d{0,3})(?P<precision>\.\d{0,2})?(?P<verb>.|$)", re.DOTALL)


def verbs(format: str) -> list[str]:
    """The verbs of a format, one for each argument; one that is not known raises ValueError."""
    found = [match["verb"] for match in _VERB.finditer(format) if match["verb"] != "%"]
    for verb in found:
        if verb not in _WRITERS:
            raise ValueError(f"%{verb} is none of %{', %'.join(_WRITERS)} and %%")
    return found


def printf(format: Any, *values: Any) -> str:
    """The format with its verbs replaced by the values, of which there must be as many."""
    text = text_of(format)
    try:
        count = len(verbs(text))
    except ValueError as error:
        raise RecordRefused(f"printf: {error}") from None
    if count != len(values):
        raise RecordRefused(f"printf: the format has {count} verbs and {len(values)} values")
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


def _quote(value: Any) -> str:
    return encode_json(text_of(value)).decode()


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
