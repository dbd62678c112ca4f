"""Frame: what one append put into a journal; and the bytes of frames and segment headers on the disk.

Every frame has a header of 64 bytes with a checksum of its own. So its size is known even when its content is damaged.
The header has the frame's offset, so that bytes of another place or time are not mistaken for it. The checksum is
CRC-32 from zlib: it finds every burst of up to 32 bits and all but one in four billion of other damages. It costs less
than copying the bytes, and needs no further package.

The body of a message is a record without its position, which is the journal's own.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from conduit_py.errors import RecordRefused
from conduit_py.journal.message_id import TICK, MessageUuid
from conduit_py.journal.registers import Registers
from conduit_py.record import Data, Operation, Payload, Record
from conduit_py.record_codec import decode_record, decode_records, encode_record


class Frame:
    """Messages at `[begin, end)` of a journal. `bodies[i]` has the id `id.later(i)`.

    Offsets are those of whole frames: within a frame the ids tell the messages apart.
    """

    __slots__ = ("_bodies", "_packed", "begin", "count", "end", "id", "journal", "last_clock", "size")

    def __init__(self, journal: str, begin: int, end: int, id: MessageUuid, count: int, packed: bytes) -> None:
        self.journal = journal
        self.begin = begin
        self.end = end
        self.id = id
        self.count = count
        self.last_clock = id.clock + TICK * (count - 1)
        self.size = len(packed)
        self._packed = packed
        self._bodies: list[bytes] | None = None

    @property
    def bodies(self) -> list[bytes]:
        # Unpacked on first use: frames that are never committed, or of other producers, need no unpacking.
        if self._bodies is None:
            self._bodies = unpack_bodies(self._packed, self.count)
        return self._bodies


def pack_bodies(bodies: Sequence[bytes]) -> bytes:
    """The lengths of the bodies, then the bodies: a batch is packed in three calls, however many there are."""
    return struct.pack(f"<{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)


def unpack_bodies(packed: bytes, count: int) -> list[bytes]:
    """The inverse of `pack_bodies`."""
    lengths = struct.unpack_from(f"<{count}I", packed)
    return [packed[start:stop] for start, stop in pairwise(accumulate(lengths, initial=4 * count))]


VERSION = 1

MESSAGES, SEAL, GAP = 1, 2, 3
"""Kinds of frames: messages; the end of a segment, with more in the next; a place where damage was set aside."""

MAGIC = b"cjfr"
_FRAME = struct.Struct("<4sBB6xQQIII16sI")
HEADER_SIZE = _FRAME.size + 4
# The size, header included, has 32 bits in the header.
FRAME_SIZE_MAX = 2**31

_SEGMENT_MAGIC = b"conduit-journal\n"
_SEGMENT = struct.Struct("<16sHHII")
SUFFIX = ".journal"


class Header(NamedTuple):
    """What precedes the content of a frame."""

    magic: bytes
    version: int
    kind: int
    begin: int
    """Its offset in the journal."""
    synced: int
    """Up to where the journal was on the disk when this was written."""
    size: int
    """Of the whole frame."""
    messages: int
    registers_size: int
    """Of the registers as they are after it, if it changes them."""
    id: bytes
    checksum: int
    """Of registers and messages."""

    @property
    def end(self) -> int:
        return self.begin + self.size


class SegmentInfo(msgspec.Struct, frozen=True):
    """The header of a segment, in JSON: readable with `head`."""

    journal: str
    """Random, the same for all segments of a journal."""
    base: int
    registers: Registers
    """As they were at its start, so that earlier segments may be pruned."""
    created: str
    missing_until: int | None = None
    """Set in the place of a lost segment: there is nothing up to this offset."""


def encode_frame(header: Header, content: bytes) -> bytes:
    """The frame, with its checksums."""
    packed = _FRAME.pack(*header[:-1], zlib.crc32(content))
    return b"".join((packed, zlib.crc32(packed).to_bytes(4, "little"), content))


def message_header(begin: int, synced: int, size: int, count: int, registers_size: int, id: MessageUuid) -> Header:
    return Header(
        MAGIC, VERSION, MESSAGES, begin, synced, HEADER_SIZE + size, count, registers_size, id.to_bytes(), checksum=0
    )


def mark(kind: int, begin: int, size: int = HEADER_SIZE) -> bytes:
    """The header of a seal, or of a gap that is `size` bytes long."""
    packed = _FRAME.pack(MAGIC, VERSION, kind, begin, begin, size, 0, 0, bytes(16), 0)
    return packed + zlib.crc32(packed).to_bytes(4, "little")


def decode_header(data: bytes, at: int, begin: int) -> Header | None:
    """The header at `data[at:]` of the frame at offset `begin`; None if there is none, or not a whole one."""
    packed = data[at : at + HEADER_SIZE]
    if len(packed) < HEADER_SIZE or zlib.crc32(packed[:-4]) != int.from_bytes(packed[-4:], "little"):
        return None
    header = Header._make(_FRAME.unpack_from(packed))
    # The offset too: bytes of another place or time can have a valid checksum.
    return header if header.magic == MAGIC and header.begin == begin else None


def content_holds(header: Header, content: bytes) -> bool:
    """Whether the content of a frame is what was written. A gap always passes: it has no content."""
    return header.kind != MESSAGES or zlib.crc32(content) == header.checksum


def encode_segment(info: SegmentInfo, size: int | None = None) -> bytes:
    """The header of a segment, padded to `size` if given. Raises ValueError when it does not fit."""
    body = msgspec.json.encode(info)
    padding = 0 if size is None else size - _SEGMENT.size - len(body) - 1
    if padding < 0:
        raise ValueError(f"a header of {size} bytes has no room for {info}")
    body += b" " * padding + b"\n"
    return _SEGMENT.pack(_SEGMENT_MAGIC, VERSION, 0, len(body), zlib.crc32(body)) + body


class NotASegment(ValueError):
    """A file that should be a segment cannot be read as one."""


class OtherVersion(NotASegment):
    """A segment in a version of the format that is not ours."""


def decode_segment(data: bytes) -> tuple[SegmentInfo, int]:
    """The header of a segment, and its size. Raises NotASegment, with the reason."""
    if len(data) < _SEGMENT.size or not data.startswith(_SEGMENT_MAGIC):
        raise NotASegment("it does not begin like a segment of a journal")
    _, version, _, size, checksum = _SEGMENT.unpack_from(data)
    # Before the checksum, which another version may keep elsewhere.
    if version != VERSION:
        raise OtherVersion(f"it has version {version} of the format, and this conduit-py can read version {VERSION}")
    body = data[_SEGMENT.size : _SEGMENT.size + size]
    if len(body) < size or zlib.crc32(body) != checksum:
        raise NotASegment("its header is damaged")
    return msgspec.json.decode(body, type=SegmentInfo), _SEGMENT.size + size


def segment_name(base: int) -> str:
    """The name of the file; names sort as offsets do."""
    return f"{base:020d}{SUFFIX}"


# A partial, not a function: its call is free, and a journal makes one for every record.
encode_body: Callable[[Record], bytes] = partial(encode_record, with_position=False)
"""The body of a record. A value that it cannot carry raises RecordRefused naming it (invariant 12)."""


def decode_bodies(bodies: Sequence[bytes], positions: Sequence[bytes]) -> list[Record] | None:
    """The records in bodies, all in one go; None when one of them is no record, or an old one."""
    try:
        return decode_records(bodies, positions)
    except ValueError:
        return None


def decode_body(body: bytes, position: bytes) -> Record:
    """The record in a body; what is none raises RecordRefused."""
    try:
        if body and body[0] == _FIRST_FORM:
            return _decode_first_form(body, position)
        return decode_record(body, position)
    except (msgspec.DecodeError, ValueError, ArithmeticError) as error:
        raise RecordRefused(f"is not a record: {error}") from error


# The form of journals up to version 0.1: an array of five without a version, with extensions of its own. It kept
# neither the zone of a datetime nor its fold, which is why nothing is written in it any more.
_FIRST_FORM = 0x95


def _decode_first_form(body: bytes, position: bytes) -> Record:
    operation, metadata, key, before, after = _FIRST_DECODER.decode(body)
    return Record(position, operation, metadata, key, Payload(before, after))


def _decode_extension(code: int, data: memoryview) -> Any:
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"it has an extension {code}, which is unknown to this version")
    return read(bytes(data))


_READERS: dict[int, Callable[[bytes], Any]] = {
    1: int,
    2: lambda data: Decimal(data.decode()),
    3: lambda data: datetime.fromisoformat(data.decode()),
    4: lambda data: date.fromisoformat(data.decode()),
    5: lambda data: time.fromisoformat(data.decode()),
    6: lambda data: timedelta(*map(int, data.split())),
    7: lambda data: UUID(data.decode()),
    8: lambda data: tuple(_FIRST_ANY.decode(data)),
}
_FIRST_ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_decode_extension)
_FIRST_DECODER = msgspec.msgpack.Decoder(tuple[Operation, dict[str, str], Data, Data, Data], ext_hook=_decode_extension)
