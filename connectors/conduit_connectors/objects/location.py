"""Where announced objects may be: an address is resolved first, and opened only below an allowed prefix."""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_MACHINE = (Path("/proc"), Path("/sys"), Path("/dev"))
"""What the kernel shows as files: environments, memory and devices."""


class Address(NamedTuple):
    """An address of an object: a path, or the bucket and key of S3."""

    scheme: Literal["file", "s3"]
    path: str


def parse_address(address: str) -> Address:
    """Parse a path, a `file:` or an `s3:` address. Raises ValueError for any other."""
    match = _SCHEME.match(address)
    if match is None and address:
        return Address("file", address)
    scheme = match[1].lower() if match else ""
    if scheme == "file":
        parts = urlsplit(address)
        if parts.netloc in ("", "localhost") and parts.path:
            return Address("file", unquote(parts.path))
    elif scheme == "s3" and (path := address[len("s3://") :]) and address[3:5] == "//" and path[0] != "/":
        return Address("s3", path)
    raise ValueError(f"{address!r} cannot be read: announce paths, file: or s3: addresses")


class AllowedPrefixes:
    """Opens what is below one of the prefixes, and refuses everything else with a PermissionError.

    A prefix is a folder or a file, or a bucket of S3 and how keys in it begin.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        parsed = [parse_address(prefix) for prefix in prefixes]
        self._folders = [Path(each.path) for each in parsed if each.scheme == "file"]
        self._keys = [_split_key(each.path) for each in parsed if each.scheme == "s3"]

    def open_file(self, path: str) -> BinaryIO:
        """Open a regular file. Links and `..` are resolved before the path is compared."""
        target = Path(path).resolve()
        for folder in self._folders:
            root = folder.resolve()
            if target.is_relative_to(root) and not _belongs_to_machine(target, root):
                return _open_below(root, target)
        raise _outside(path)

    def check_key(self, path: str) -> None:
        """Refuse a key of S3 that no prefix holds, and one that a client might normalise to another."""
        bucket, key = _split_key(path)
        if not {".", ".."}.intersection(PurePosixPath(key).parts) and "/./" not in key:
            for allowed, start in self._keys:
                if bucket == allowed and key and key.startswith(start):
                    return
        raise _outside(f"s3://{path}")


def _split_key(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _belongs_to_machine(target: Path, root: Path) -> bool:
    """True for /proc, /sys and /dev, unless the prefix itself is in there: `/` is not meant to allow them."""
    return any(target.is_relative_to(each) and not root.is_relative_to(each) for each in _MACHINE)


def _open_below(root: Path, target: Path) -> BinaryIO:
    """Open a resolved path step by step from its root, without following a link.

    The path was compared a moment ago. Someone who may write below the root could put a link into it since.
    """
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    folder, handle = -1, os.open(root, flags)
    try:
        for part in target.relative_to(root).parts:
            folder, handle = handle, -1
            handle = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = -1
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PermissionError(f"{target} is not a regular file")
        opened, handle = os.fdopen(handle, "rb"), -1
        return opened
    finally:
        for each in (folder, handle):
            if each >= 0:
                os.close(each)


def _outside(address: str) -> PermissionError:
    return PermissionError(f"{address} is outside of allowed_prefixes")
