"""Parses what PostgreSQL's plugin `pgoutput` sends over logical replication, in version 1 of its protocol.

`parse_message` is strict: it raises MessageMalformed, which names the message and the byte, for anything that is not
exactly one message.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import Final, TypeAlias

import msgspec


class MessageMalformed(ValueError):
    """The bytes are no message of the protocol. The text names the message and where it goes wrong."""


class UnchangedValue(msgspec.Struct, frozen=True):
    """Stands for a large value that an update did not change, so that the server did not send it."""


UNCHANGED: Final = UnchangedValue()

RowValues: TypeAlias = tuple[bytes | UnchangedValue | None, ...]
"""The values of a row in PostgreSQL's text form; None is NULL."""


class BeginMessage(msgspec.Struct, frozen=True, gc=False):
    """The start of a transaction, whose commit is at `commit_lsn`."""

    commit_lsn: int
    committed_at: int
    xid: int


class CommitMessage(msgspec.Struct, frozen=True, gc=False):
    """The end of a transaction. The next commit is at `end_lsn` or later."""

    commit_lsn: int
    end_lsn: int
    committed_at: int


class OriginMessage(msgspec.Struct, frozen=True, gc=False):
    """The transaction was replicated to this server from another one."""

    commit_lsn: int
    name: str


class RelationColumn(msgspec.Struct, frozen=True):
    """A column of a table. `identity` is true for those of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int = -1
    identity: bool = False


class RelationMessage(msgspec.Struct, frozen=True):
    """The columns of a table, as they are in the changes that follow."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    """d: the primary key, n: nothing, f: the whole row, i: a unique index."""
    columns: tuple[RelationColumn, ...]


class TypeMessage(msgspec.Struct, frozen=True, gc=False):
    """The name of a type that is not built in."""

    oid: int
    schema: str
    name: str


class InsertMessage(msgspec.Struct, frozen=True):
    """A row was inserted."""

    relation: int
    after: RowValues


class UpdateMessage(msgspec.Struct, frozen=True):
    """A row was changed. `before` is None unless the key changed or the identity is the whole row."""

    relation: int
    before: RowValues | None
    key_only: bool
    """True if only the columns of the replica identity have a value in `before`."""
    after: RowValues


class DeleteMessage(msgspec.Struct, frozen=True):
    """A row was deleted."""

    relation: int
    before: RowValues
    key_only: bool


class TruncateMessage(msgspec.Struct, frozen=True, gc=False):
    """All rows of these tables were deleted."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(msgspec.Struct, frozen=True, gc=False):
    """What a client wrote with pg_logical_emit_message."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message: TypeAlias = (
    BeginMessage
    | CommitMessage
    | OriginMessage
    | RelationMessage
    | TypeMessage
    | InsertMessage
    | UpdateMessage
    | DeleteMessage
    | TruncateMessage
    | LogicalMessage
)

_BYTE = Struct("!B")
_SHORT = Struct("!H")
_INT = Struct("!I")
_COLUMN_TYPE = Struct("!Ii")
_LENGTH = Struct("!i")
_LSN = Struct("!Q")
_BEGIN = Struct("!QqI")
_COMMIT = Struct("!BQQq")
_LOGICAL = Struct("!BQ")


def parse_message(data: bytes) -> Message:
    """Parse one message of pgoutput."""
    known = _PARSERS.get(data[:1])
    if known is None:
        raise MessageMalformed(f"an unknown message {data[:1]!r} of {len(data)} bytes")
    name, parse = known
    reader = _Reader(data)
    try:
        message = parse(reader)
    except MessageMalformed as wrong:
        raise MessageMalformed(f"{name} message of {len(data)} bytes, at byte {reader.at}: {wrong}") from None
    except error:
        raise MessageMalformed(f"{name} message of {len(data)} bytes, at byte {reader.at}: it is cut off") from None
    if reader.at != len(data):
        raise MessageMalformed(f"{name} message of {len(data)} bytes: it ends at byte {reader.at}")
    return message


class _Reader:
    """The bytes of a message and how many of them were read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 1

    def number(self, form: Struct) -> int:
        [value] = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(value)

    def numbers(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self.data, self.at)
        self.at += form.size
        return values

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise MessageMalformed(f"a length of {size} bytes, and {len(self.data) - self.at} are left")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise MessageMalformed("a text without an end")
        try:
            text = self.data[self.at : end].decode()
        except UnicodeDecodeError as wrong:
            raise MessageMalformed(f"a text that is not UTF-8: {wrong}") from None
        self.at = end + 1
        return text

    def kind(self) -> bytes:
        return self.take(1)

    def row(self) -> RowValues:
        """Read the values of a row. The most frequent call of all."""
        data, at = self.data, self.at
        [count] = _SHORT.unpack_from(data, at)
        at += 2
        values: list[bytes | UnchangedValue | None] = []
        for _ in range(count):
            kind = data[at : at + 1]
            at += 1
            if kind == b"t":
                [size] = _LENGTH.unpack_from(data, at)
                at += 4
                end = at + size
                if size < 0 or end > len(data):
                    self.at = at
                    raise MessageMalformed(f"a length of {size} bytes, and {len(data) - at} are left")
                values.append(data[at:end])
                at = end
            elif kind == b"n":
                values.append(None)
            elif kind == b"u":
                values.append(UNCHANGED)
            else:
                self.at = at
                raise MessageMalformed(f"an unknown kind of value {kind!r}")
        self.at = at
        return tuple(values)

    def row_after(self, expected: bytes) -> RowValues:
        kind = self.kind()
        if kind != expected:
            raise MessageMalformed(f"{kind!r} in place of {expected!r}")
        return self.row()


def _flag(value: int, where: str = "") -> bool:
    if value > 1:
        raise MessageMalformed(f"{where} {value} in place of 0 or 1".strip())
    return value == 1


def _begin(reader: _Reader) -> BeginMessage:
    return BeginMessage(*reader.numbers(_BEGIN))


def _commit(reader: _Reader) -> CommitMessage:
    flags, commit_lsn, end_lsn, committed_at = reader.numbers(_COMMIT)
    if flags:
        raise MessageMalformed(f"unknown flags {flags}")
    return CommitMessage(commit_lsn, end_lsn, committed_at)


def _origin(reader: _Reader) -> OriginMessage:
    return OriginMessage(reader.number(_LSN), reader.text())


def _relation(reader: _Reader) -> RelationMessage:
    oid, schema, name = reader.number(_INT), reader.text(), reader.text()
    identity = reader.kind()
    if identity not in (b"d", b"n", b"f", b"i"):
        raise MessageMalformed(f"an unknown replica identity {identity!r}")
    columns = tuple(_column(reader) for _ in range(reader.number(_SHORT)))
    # The server writes an empty text for the schema of its own catalog.
    return RelationMessage(oid, schema or "pg_catalog", name, identity.decode(), columns)


def _column(reader: _Reader) -> RelationColumn:
    identity = _flag(reader.number(_BYTE), "flags")
    name = reader.text()
    type_oid, modifier = reader.numbers(_COLUMN_TYPE)
    return RelationColumn(name, type_oid, modifier, identity)


def _type(reader: _Reader) -> TypeMessage:
    return TypeMessage(reader.number(_INT), reader.text() or "pg_catalog", reader.text())


def _insert(reader: _Reader) -> InsertMessage:
    return InsertMessage(reader.number(_INT), reader.row_after(b"N"))


def _update(reader: _Reader) -> UpdateMessage:
    relation, kind = reader.number(_INT), reader.kind()
    if kind == b"N":
        return UpdateMessage(relation, None, False, reader.row())
    if kind not in (b"K", b"O"):
        raise MessageMalformed(f"{kind!r} in place of b'K', b'O' or b'N'")
    before = reader.row()
    return UpdateMessage(relation, before, kind == b"K", reader.row_after(b"N"))


def _delete(reader: _Reader) -> DeleteMessage:
    relation, kind = reader.number(_INT), reader.kind()
    if kind not in (b"K", b"O"):
        raise MessageMalformed(f"{kind!r} in place of b'K' or b'O'")
    return DeleteMessage(relation, reader.row(), kind == b"K")


def _truncate(reader: _Reader) -> TruncateMessage:
    count, options = reader.number(_INT), reader.number(_BYTE)
    if options > 3:
        raise MessageMalformed(f"unknown options {options}")
    # Before the numbers are read: a count that is wrong must not cost memory.
    oids = reader.take(count * _INT.size)
    return TruncateMessage(tuple(oid for (oid,) in _INT.iter_unpack(oids)), bool(options & 1), bool(options & 2))


def _logical(reader: _Reader) -> LogicalMessage:
    transactional, lsn = reader.numbers(_LOGICAL)
    flag, prefix = _flag(transactional, "flags"), reader.text()
    return LogicalMessage(flag, lsn, prefix, reader.take(reader.number(_LENGTH)))


_PARSERS: dict[bytes, tuple[str, Callable[[_Reader], Message]]] = {
    b"B": ("Begin", _begin),
    b"C": ("Commit", _commit),
    b"O": ("Origin", _origin),
    b"R": ("Relation", _relation),
    b"Y": ("Type", _type),
    b"I": ("Insert", _insert),
    b"U": ("Update", _update),
    b"D": ("Delete", _delete),
    b"T": ("Truncate", _truncate),
    b"M": ("Logical decoding", _logical),
}
