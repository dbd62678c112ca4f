"""Parses the events of MariaDB's binary log, as a server sends them to a replica.

An event is parsed only as far as it is needed: rows of tables that nobody reads stay bytes. Whatever does not fit the
format is an EventMalformed that names the event, never a wrong value.
"""

import zlib
from collections.abc import Callable
from struct import Struct, error
from typing import Final, TypeVar

import msgspec

QUERY: Final = 2
STOP: Final = 3
ROTATE: Final = 4
FORMAT_DESCRIPTION: Final = 15
XID: Final = 16
EXECUTE_LOAD_QUERY: Final = 18
TABLE_MAP: Final = 19
INCIDENT: Final = 26
HEARTBEAT: Final = 27
XA_PREPARE: Final = 38
GTID: Final = 162
GTID_LIST: Final = 163
QUERY_COMPRESSED: Final = 165

WRITE_ROWS: Final = frozenset({23, 30, 166, 169})
UPDATE_ROWS: Final = frozenset({24, 31, 167, 170})
DELETE_ROWS: Final = frozenset({25, 32, 168, 171})
ROWS: Final = WRITE_ROWS | UPDATE_ROWS | DELETE_ROWS
_COMPRESSED_ROWS: Final = frozenset(range(166, 172))
_ROWS_VERSION_2: Final = frozenset({30, 31, 32, 169, 170, 171})

IGNORED: Final = frozenset(
    # Stop; variables that a statement uses, which is an event of its own; the beginning of a file that a statement
    # loads; marks of the log; statements beside their rows; the start of encryption, which the server undoes.
    {STOP, 5, 13, 14, 17, 28, 29, 160, 161, 164}
)
"""Kinds of events that say nothing about rows."""

_HEADER = Struct("<IBIIIH")
_CHECKSUM_SIZE = 4
_ARTIFICIAL = 0x20
_IGNORABLE = 0x80
_GTID = Struct("<QIB")
_GTID_OF_LIST = Struct("<IIQ")
_QUERY = Struct("<IIBHH")
_COMMIT_ID = 2
_STANDALONE = 1
_PREPARED_XA = 64

T = TypeVar("T")


class EventMalformed(Exception):
    """The bytes of an event do not follow the format."""


class BinlogEvent(msgspec.Struct, gc=False):
    """An event whose header is parsed. `end` is where it ends in its file, modulo 2**32; 0 if it is in none."""

    kind: int
    timestamp: int
    server_id: int
    size: int
    end: int
    flags: int
    body: bytes

    @property
    def artificial(self) -> bool:
        """True if the server made it for this stream: it is not in the log."""
        return bool(self.flags & _ARTIFICIAL)

    @property
    def ignorable(self) -> bool:
        return bool(self.flags & _IGNORABLE)


class Gtid(msgspec.Struct, frozen=True, order=True, gc=False):
    """The number of a transaction: in its domain, the sequence grows. `server` is where it was committed first."""

    domain: int
    server: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


class GroupStart(msgspec.Struct, frozen=True, gc=False):
    """The beginning of a transaction, or of a statement that is one by itself."""

    gtid: Gtid
    standalone: bool
    """True if the next statement is all of it."""
    prepared: bool
    """True if it is prepared only: a later statement commits it or rolls it back."""


class LoggedStatement(msgspec.Struct, frozen=True, gc=False):
    """A statement of the log, with the database that it ran in."""

    database: str
    sql: str
    ansi_quotes: bool = False


def split_event(data: bytes, *, checksums: bool) -> BinlogEvent:
    """Parse the header of an event and check its checksum."""
    try:
        timestamp, kind, server_id, size, end, flags = _HEADER.unpack_from(data)
    except error:
        raise EventMalformed(f"an event of {len(data)} bytes, which is shorter than a header") from None
    if size != len(data):
        raise EventMalformed(f"event {kind}: {len(data)} bytes in place of {size}")
    body = data[_HEADER.size :]
    # A format description always ends with the field, and says itself whether it is a checksum.
    if kind == FORMAT_DESCRIPTION:
        checksums = body[-_CHECKSUM_SIZE - 1 : -_CHECKSUM_SIZE] == b"\1"
    if checksums:
        expected = int.from_bytes(body[-_CHECKSUM_SIZE:], "little")
        if zlib.crc32(data[:-_CHECKSUM_SIZE]) != expected:
            raise EventMalformed(f"event {kind} that ends at {end}: its checksum is wrong")
    if checksums or kind == FORMAT_DESCRIPTION:
        body = body[:-_CHECKSUM_SIZE]
    return BinlogEvent(kind, timestamp, server_id, size, end, flags, body)


def parse_format(event: BinlogEvent) -> bool:
    """Return whether the events that follow have checksums."""
    if event.body[-1:] not in (b"\0", b"\1"):
        raise EventMalformed(f"format description: unknown checksum {event.body[-1:]!r}")
    return event.body[-1] == 1


def parse_rotate(event: BinlogEvent) -> tuple[str, int]:
    """Return the name of the file whose events follow, and where they begin."""

    def parse(body: bytes) -> tuple[str, int]:
        return body[8:].decode(), _U64.unpack_from(body)[0]

    return _parse("rotate", event, parse)


def parse_group_start(event: BinlogEvent) -> GroupStart:
    """Return what begins with this event."""

    def parse(body: bytes) -> GroupStart:
        sequence, domain, flags = _GTID.unpack_from(body)
        gtid = Gtid(domain, event.server_id, sequence)
        return GroupStart(gtid, bool(flags & _STANDALONE), bool(flags & _PREPARED_XA))

    return _parse("GTID", event, parse)


def parse_gtid_list(event: BinlogEvent) -> list[Gtid]:
    """Return the last transaction of each domain and server before the events that follow."""

    def parse(body: bytes) -> list[Gtid]:
        count = _U32.unpack_from(body)[0] & 0x0FFFFFFF
        found = [_GTID_OF_LIST.unpack_from(body, 4 + index * _GTID_OF_LIST.size) for index in range(count)]
        return [Gtid(domain, server, sequence) for domain, server, sequence in found]

    return _parse("GTID list", event, parse)


def parse_statement(event: BinlogEvent) -> LoggedStatement:
    """Return the statement of an event. A name that is not UTF-8 is read as Latin-1."""

    def parse(body: bytes) -> LoggedStatement:
        _, _, name_size, _, status_size = _QUERY.unpack_from(body)
        at = _QUERY.size + status_size
        modes, charset = _status(body[_QUERY.size : at])
        name, text = body[at : at + name_size], body[at + name_size + 1 :]
        if body[at + name_size : at + name_size + 1] != b"\0":
            raise EventMalformed("query: no end of the name of the database")
        if event.kind == QUERY_COMPRESSED:
            text = uncompress(text)
        # Names are ASCII nearly always. With another character set they must still be found, if only by luck.
        codec = "utf-8" if charset in _UTF8_COLLATIONS else "latin-1"
        return LoggedStatement(name.decode(), text.decode(codec, "replace"), bool(modes & _ANSI_QUOTES))

    return _parse("query", event, parse)


def rows_body(event: BinlogEvent) -> tuple[int, int]:
    """Return the number of the table of an event with rows, and where its columns begin."""
    start = 8
    if event.kind in _ROWS_VERSION_2:
        start += _U16.unpack_from(event.body, start)[0]
    return int.from_bytes(event.body[:6], "little"), start


def is_compressed(event: BinlogEvent) -> bool:
    return event.kind in _COMPRESSED_ROWS


def uncompress(data: bytes) -> bytes:
    """Undo MariaDB's compression of a part of an event. Raises EventMalformed."""
    mark = data[:1]
    if not mark or not mark[0] & 0x80 or (mark[0] >> 4) & 7:
        raise EventMalformed(f"unknown compression {mark!r}")
    digits = mark[0] & 7
    size = int.from_bytes(data[1 : 1 + digits], "big")
    try:
        whole = zlib.decompress(data[1 + digits :])
    except zlib.error as wrong:
        raise EventMalformed(f"compressed bytes: {wrong}") from None
    if len(whole) != size:
        raise EventMalformed(f"{len(whole)} bytes in place of {size} after decompression")
    return whole


_U16, _U32, _U64 = Struct("<H"), Struct("<I"), Struct("<Q")
_ANSI_QUOTES = 4
# Numbers of collations of utf8mb3 and utf8mb4 in every version, and those since 10.10, which begin at 2048.
_UTF8_COLLATIONS = frozenset(
    {33, 45, 46, 76, 83, *range(192, 216), *range(223, 248), *range(576, 640), *range(2048, 4096)}
)
_STATUS_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 128: 3, 129: 8}
_STATUS_TEXTS = {2: 2, 5: 1, 6: 1}
"""Variables with a length before them, and how many bytes there are besides the text."""


def _status(status: bytes) -> tuple[int, int]:
    """Return the modes of the session and the collation of its statements; the usual ones if they are not there."""
    modes, collation, at = 0, 45, 0
    while at < len(status):
        code = status[at]
        at += 1
        if code == 1:
            modes = _U64.unpack_from(status, at)[0]
        elif code == 4:
            collation = _U16.unpack_from(status, at)[0]
        if code in _STATUS_SIZES:
            at += _STATUS_SIZES[code]
        elif code in _STATUS_TEXTS:
            at += _STATUS_TEXTS[code] + status[at]
        else:
            break  # all that is of interest comes before
    return modes, collation


def _parse(name: str, event: BinlogEvent, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(event.body)
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise EventMalformed(f"{name} of {len(event.body)} bytes: {wrong}") from None
