"""Character sets of MariaDB as codecs of Python, where both agree on every byte."""

import codecs
from collections.abc import Callable, Mapping
from typing import Final

from conduit_py.sdk import FatalError

Decode = Callable[[bytes], str]

BINARY: Final = "binary"

_CODECS: Final[Mapping[str, str]] = {
    "ascii": "ascii",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "utf8mb4": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "koi8r": "koi8-r",
}
"""Not here: those of which Python and MariaDB read some bytes differently, as most of East Asia."""


def _decode_latin1(data: bytes) -> str:
    return data.decode("cp1252", "conduit-latin1")


def _same_number(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(map(chr, error.object[error.start : error.end])), error.end


# MariaDB reads the five bytes that Windows does not define as the characters with the same number.
codecs.register_error("conduit-latin1", _same_number)


def decode_of(charset: str, column: str) -> Decode:
    """Return the function that reads text of a character set. FatalError if there is none that is exact."""
    if charset == "latin1":
        return _decode_latin1
    name = _CODECS.get(charset)
    if name is None:
        raise FatalError(
            f"the column {column} has the character set {charset}, which cannot be read exactly",
            suggestion="convert the column to utf8mb4, or take its table out of `tables`",
        )
    return lambda data: data.decode(name)
