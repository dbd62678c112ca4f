"""Delivery key: 128 bits that name a unit of work on every attempt and after every restart."""

import hashlib
from collections.abc import Iterable


def delivery_key(parts: Iterable[bytes]) -> bytes:
    """A pure function of what is given, in this order: of the owner and the inputs that were consumed (I10)."""
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    text = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return hashlib.blake2b(text, digest_size=16).digest()
