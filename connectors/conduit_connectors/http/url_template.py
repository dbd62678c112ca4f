"""UrlTemplate: a URL with parts that come from the record. A record can fill a part, and change nothing else."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import httpx2

from conduit_py.sdk import Record, RecordRefused
from conduit_py.sdk.template import FieldPath, option_error

_PART: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
PART_SIZE_MAX: Final = 2048


class UrlTemplate:
    """Makes the URL of a record. Parts such as `{id}` stand in the path or the query, never in the host.

    A value is percent-encoded, so that it stays one part of the path or one value of the query.
    """

    def __init__(self, url: str, parts: Mapping[str, FieldPath]) -> None:
        self._pieces = _PART.split(url)
        self._parts = parts

    @property
    def is_fixed(self) -> bool:
        return len(self._pieces) == 1

    def render(self, record: Record) -> httpx2.URL:
        """Return the URL of a record. Raises RecordRefused if a part is missing or cannot stand in a URL."""
        texts = [self._value(piece, record) if index % 2 else piece for index, piece in enumerate(self._pieces)]
        try:
            return httpx2.URL("".join(texts))
        except httpx2.InvalidURL as error:
            raise RecordRefused(f"makes a URL that cannot be used: {error}"[:300]) from error

    def _value(self, name: str, record: Record) -> str:
        value = _scalar(self._parts[name].get(record))
        if value is None:
            raise RecordRefused(f"{self._parts[name]} is no text or number, and the URL needs it for {{{name}}}")
        # Dots alone would name the folder above, and an empty part another resource.
        if not value.strip(".") or len(value) > PART_SIZE_MAX:
            raise RecordRefused(f"{self._parts[name]} cannot be a part of a URL: {value[:40]!r}")
        return quote(value, safe="", errors="replace")


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str | int | float) else None


def check_template(url: str, parts: Mapping[str, FieldPath]) -> str:
    """Return the text of a template, if its parts are declared and none is in the host."""
    names = set(_PART.findall(url))
    if names != set(parts):
        missing = ", ".join(sorted(names ^ set(parts)))
        raise option_error(f"must have the same parts as `url_parts` (only one of them has {missing})")
    scheme, separator, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if not separator or "{" in scheme + host or "{" in _PART.sub("", url):
        raise option_error("must be a URL whose {parts} are in the path or the query", "write https://host/items/{id}")
    return url
