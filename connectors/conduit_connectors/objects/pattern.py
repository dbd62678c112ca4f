"""ObjectPattern: which objects an address with wildcards names, and where they are."""

import os
import re
from collections.abc import Sequence
from posixpath import commonpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_MAGIC = re.compile(r"[*?\[]")
CLOUD_SCHEMES = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"}


class StorePlace(NamedTuple):
    """A store and a path in it: the scheme ("file" for this machine), what names the store, and the path."""

    scheme: str
    root: str
    path: str


def parse_place(url: str) -> StorePlace:
    """Parse a path, or an address such as `s3://bucket/orders`. Raises ValueError for one that names nothing."""
    found = _SCHEME.match(url)
    if found is None:
        if not url:
            raise ValueError("an address is empty")
        return StorePlace("file", "", url)
    scheme = found[1].lower()
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ValueError(f"{url!r} names no file of this machine: write file:///path, or the path alone")
        return StorePlace("file", "", unquote(parts.path))
    host, slash, path = url[found.end() :].partition("/")
    if not host and scheme != "memory":
        raise ValueError(f"{url!r} names no bucket or host: write {scheme}://name/path")
    # In a bucket a key has no slash in front. On a host a path is absolute.
    return StorePlace(scheme, f"{scheme}://{host}", path if scheme in CLOUD_SCHEMES else slash + path)


class ObjectPattern:
    """One or several addresses of one store, with `*`, `?`, `[…]` in a name and `**` for any folders.

    An address without wildcards is one object, or a folder with everything below it. Below a folder and where a
    wildcard stands, names that begin with a dot or an underscore are passed over: other programs are writing them.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        places = [parse_place(url) for url in urls]
        self.scheme, self.root, _ = places[0]
        if len({(place.scheme, place.root) for place in places}) > 1:
            raise ValueError("all addresses of one source must be of one bucket, one host, or this machine")
        # `//` and `/./` name the same files, but not the same names.
        self._paths = [_tidy(place.path) for place in places]
        self.exact = [path for path in self._paths if not _MAGIC.search(path)]
        """The addresses without wildcards: each an object or a folder."""
        self.has_wildcards = len(self.exact) < len(self._paths)
        self._expressions = [re.compile(_translate(path), re.DOTALL) for path in self._paths]
        self._folders = [_fixed_folder(path) for path in self._paths]

    @property
    def folder(self) -> str:
        """The folder below which all of these objects are."""
        if len(set(self._folders)) == 1:
            return self._folders[0]
        parts = {folder.startswith("/") for folder in self._folders}
        return "" if len(parts) > 1 or "" in self._folders else commonpath(self._folders)

    def matches(self, name: str) -> bool:
        return any(expression.fullmatch(name) for expression in self._expressions)


def _tidy(path: str) -> str:
    start = "/" if path.startswith("/") else ""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{path!r} has `..` in it: write the path without it")
    return start + "/".join(parts)


def _fixed_folder(path: str) -> str:
    """Return the longest folder, without wildcards, that holds all names of a pattern."""
    found = _MAGIC.search(path)
    if found is None:
        # It may be a folder itself.
        return path
    return path[: found.start()].rpartition("/")[0] or ("/" if path.startswith("/") else "")


def _translate(path: str) -> str:
    """Return the expression of all names that a pattern names."""
    if not _MAGIC.search(path):
        below = re.escape(path) + ("/" if path and path != "/" else "")
        return f"{re.escape(path)}|{below}{_FOLDERS}{_VISIBLE}[^/]*"
    parts = path.split("/")
    made = [_FOLDERS if part == "**" else _translate_part(part) + "/" for part in parts[:-1]]
    last = _FOLDERS + _VISIBLE + "[^/]+" if parts[-1] == "**" else _translate_part(parts[-1])
    return "".join(made) + last


_VISIBLE = r"(?![._])"
_FOLDERS = rf"(?:{_VISIBLE}[^/]+/)*"


def _translate_part(part: str) -> str:
    text, at = "" if part[:1] in ("", ".", "_") or not _MAGIC.search(part) else _VISIBLE, 0
    while at < len(part):
        sign = part[at]
        end = part.find("]", at + 2) if sign == "[" else -1
        if sign == "*":
            text += "[^/]*"
        elif sign == "?":
            text += "[^/]"
        elif end > 0:
            # Only `!` and `-` mean something in there.
            negated = part[at + 1] == "!"
            inner = re.sub(r"([\\^[&~|])", r"\\\1", part[at + 1 + negated : end])
            text += f"(?!/)[{'^' if negated else ''}{inner}]"
            at = end
        else:
            text += re.escape(sign)
        at += 1
    return text


def has_wildcards(path: str | os.PathLike[str]) -> bool:
    """Return True if a path has a sign that stands for several names."""
    return _MAGIC.search(os.fspath(path)) is not None
