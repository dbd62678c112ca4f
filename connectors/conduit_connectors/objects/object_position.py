"""ObjectPosition: where a source of objects is: the object, the record in it, and how it goes on after that object."""

import base64
import os
from typing import NamedTuple

import msgspec

from conduit_connectors.objects.discovery import FoundObject, Round
from conduit_connectors.objects.store import ObjectInfo
from conduit_py.sdk import foreign_position

_PREFIX = b"objects:1:"


class ConsumedObject(msgspec.Struct, frozen=True, array_like=True):
    """An object that was read to its end and is to be removed or moved: its name and its mark."""

    name: bytes
    mark: str


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """What all records of one object have in common. `name` is bytes, because a file may have any."""

    round: Round
    name: bytes
    size: int
    modified: int
    mark: str
    consumed: tuple[ConsumedObject, ...] = ()


class ObjectPosition(NamedTuple):
    """A record of an object. `offset` is where it ends; `done` is True for the last record.

    `consumed` are the objects before it that may still be there, although they were read to their end.
    """

    found: FoundObject
    offset: int
    done: bool
    consumed: tuple[ConsumedObject, ...] = ()

    @classmethod
    def parse(cls, raw: bytes) -> "ObjectPosition":
        try:
            if not raw.startswith(_PREFIX):
                raise ValueError("it begins in another way")
            encoded, _, number = raw.removeprefix(_PREFIX).rpartition(b":")
            place = msgspec.msgpack.decode(base64.urlsafe_b64decode(encoded), type=_Place)
            offset = int(number)
        except (ValueError, msgspec.MsgspecError) as error:
            raise foreign_position(raw, "the objects source") from error
        info = ObjectInfo(os.fsdecode(place.name), place.size, place.modified, place.mark)
        return cls(FoundObject(info, place.round), abs(offset), offset < 0, place.consumed)


def position_template(found: FoundObject, consumed: tuple[ConsumedObject, ...] = ()) -> bytes:
    """Return what all positions in an object have in common, with a `%d` for the offset; that of the last is negative.

    It is shorter than about 10 KiB: it has the names of few objects, and never of all.
    """
    info, round = found
    place = _Place(round, os.fsencode(info.name), info.size, info.modified, info.mark, consumed)
    return _PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(place)) + b":%d"
