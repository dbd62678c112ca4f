"""DeliveredKeys: the keys of the last records, as a part of the position, so that they survive with it."""

import hashlib
import os
import struct
from dataclasses import dataclass, field
from typing import Final

from conduit_py.sdk import foreign_position

KEY_SIZE: Final = 8
_HEAD: Final = struct.Struct(">4s8sQ")
_MARK: Final = b"hook"


@dataclass(frozen=True, slots=True)
class KeyedPosition:
    """The position of a record before it is bytes. Those of many records share one log of keys."""

    run: bytes
    number: int
    log: bytearray = field(compare=False, repr=False)
    """Keys are only ever put to its end: what is before `end` stays as it is."""
    start: int
    end: int

    def encode(self) -> bytes:
        return _HEAD.pack(_MARK, self.run, self.number) + self.log[self.start : self.end]


class DeliveredKeys:
    """The last `keys_max` keys, by their hashes. A position has those of its record and of the records before it.

    What is committed with a record is so exactly what was delivered: a key is known after a crash if, and only if, its
    record is durable.
    """

    def __init__(self, keys_max: int, position: bytes | None = None, *, keyed: bool = True) -> None:
        self._size_max = keys_max * KEY_SIZE
        hashes = b"" if position is None else _decode(position)[-self._size_max :]
        self._log = bytearray(hashes)
        self._start = 0
        """Where the keys begin in the log that are still remembered."""
        self._known = {hashes[at : at + KEY_SIZE] for at in range(0, len(hashes), KEY_SIZE)}
        # Without keys, a number that no other run has: a record that was lost in a crash and another in its place must
        # have different positions. Else a destination would take the second for the first.
        self._run = bytes(8) if keyed else os.urandom(8)

    def __contains__(self, name: bytes) -> bool:
        return name in self._known

    def add(self, name: bytes) -> None:
        """Note a key; the oldest one is forgotten."""
        self._known.add(name)
        self._log += name
        while len(self._log) - self._start > self._size_max:
            self._known.discard(bytes(self._log[self._start : self._start + KEY_SIZE]))
            self._start += KEY_SIZE
        if self._start > self._size_max:
            # A new log. Positions in flight keep the old one, which nobody changes any more.
            self._log, self._start = self._log[self._start :], 0

    def position(self, number: int) -> KeyedPosition:
        """Return the position of the record with this number."""
        return KeyedPosition(self._run, number, self._log, self._start, len(self._log))


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
        raise foreign_position(position, "the webhook source")
    return position[_HEAD.size :]
