"""Delivery key: 128 bits that name a unit of work on every attempt and after every restart."""

import hashlib
from collections.abc import Iterable, Sequence


def delivery_key(parts: Iterable[bytes]) -> bytes:
    """A pure function of what is given, in this order: of the owner and the inputs that were consumed (I10)."""
    return _hashed(parts).digest()


def delivery_keys(owner: Iterable[bytes], inputs: Iterable[Sequence[bytes]]) -> list[bytes]:
    """The keys of `(*owner, *each)` for each of the inputs; what they have in common is looked at once."""
    common, keys = _hashed(owner), []
    for parts in inputs:
        hashed = common.copy()
        hashed.update(_canonical(parts))
        keys.append(hashed.digest())
    return keys


def _hashed(parts: Iterable[bytes]) -> "hashlib.blake2b":
    return hashlib.blake2b(_canonical(parts), digest_size=16)


def _canonical(parts: Iterable[bytes]) -> bytes:
    """Length prefixes keep ("ab", "c") and ("a", "bc") apart."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])
