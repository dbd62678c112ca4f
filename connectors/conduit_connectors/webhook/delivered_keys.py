"""DeliveredKeys: the keys of the last records, as a part of the position, so that they survive with it."""

import hashlib
import os
import struct
from typing import Final

from conduit_py.sdk import FatalError

KEY_SIZE: Final = 8
_HEAD: Final = struct.Struct(">4s8sQ")
_MARK: Final = b"hook"


class DeliveredKeys:
    """The last `keys_max` keys, by their hashes. A position has those of its record and of the records before it.

    What is committed with a record is so exactly what was delivered: a key is known after a crash if, and only if, its
    record is durable.
    """

    def __init__(self, keys_max: int, position: bytes | None = None, *, keyed: bool = True) -> None:
        self._size_max = keys_max * KEY_SIZE
        self._hashes = b"" if position is None else _decode(position)[-self._size_max :]
        self._known = {self._hashes[at : at + KEY_SIZE] for at in range(0, len(self._hashes), KEY_SIZE)}
        # Without keys, a number that no other run has: a record that was lost in a crash and another one that came in
        # its place must have different positions, or a destination would take the second for the first.
        self._run = bytes(8) if keyed else os.urandom(8)

    def __contains__(self, name: bytes) -> bool:
        return name in self._known

    def add(self, name: bytes) -> None:
        """Note a key; the oldest one is forgotten."""
        self._known.add(name)
        self._hashes += name
        while len(self._hashes) > self._size_max:
            self._known.discard(self._hashes[:KEY_SIZE])
            self._hashes = self._hashes[KEY_SIZE:]

    def position(self, number: int) -> bytes:
        """Return the position of the record with this number."""
        return _HEAD.pack(_MARK, self._run, number) + self._hashes


def number_of(position: bytes) -> int:
    """Return the number of the record with this position."""
    number: int = _HEAD.unpack_from(position)[2]
    return number


def hash_key(key: str | int) -> bytes:
    """Return what a key is remembered by. The number 1 and the text "1" are two keys."""
    text = f"{type(key).__name__} {key}"
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=KEY_SIZE).digest()


def _decode(position: bytes) -> bytes:
    if position[:4] != _MARK or len(position) < _HEAD.size or (len(position) - _HEAD.size) % KEY_SIZE:
        raise FatalError(
            f"the stored position {position[:40]!r} is not one of a webhook source",
            suggestion="another connector stored it; give this source another id, or reset its position",
        )
    return position[_HEAD.size :]
