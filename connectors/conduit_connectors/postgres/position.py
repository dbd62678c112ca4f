"""SourcePosition: where a source is in the log of PostgreSQL, and which tables it still has to read as a whole."""

import msgspec

from conduit_connectors.postgres.replication import format_lsn, parse_lsn
from conduit_py.sdk import foreign_position

VERSION = 1


class TableProgress(msgspec.Struct, frozen=True, array_like=True):
    """A table whose rows are not all read yet. `key` is that of the last row that was."""

    table: str
    key: tuple[str, ...] | None = None
    where: str | None = None
    """The condition of a request. None: all rows."""
    request: str | None = None
    """The id of a request, so that a row has another position in each. None for a table of the first snapshot."""
    until: tuple[str, ...] | None = None
    """The last key when the first chunk was selected: the stream has all rows that come behind it later."""


def add_request(
    progress: tuple[TableProgress, ...], request: TableProgress, *, begun: bool = False
) -> tuple[TableProgress, ...]:
    """Return the progress with one more request. It takes the place of the same one if that is not begun yet.

    With `begun` the first table is being read, even if none of its rows was given.
    """
    return (
        *(
            each
            for index, each in enumerate(progress)
            if each.request is None
            or (each.table, each.where, each.key) != (request.table, request.where, None)
            or (begun and index == 0)
        ),
        request,
    )


class SourcePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that commits before `lsn` was given. `index` and `part` are inside of the transaction at `lsn`."""

    system: str
    """The identifier of the server's data."""
    lsn: str
    index: int | None = None
    """The number, in its transaction, of the last change that was given."""
    part: int = 0
    """Which of the records of that change was given last."""
    snapshot: tuple[TableProgress, ...] = ()
    version: int = 0

    @property
    def log_place(self) -> int:
        return parse_lsn(self.lsn)

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def at(cls, system: str, lsn: int, snapshot: tuple[TableProgress, ...]) -> "SourcePosition":
        return cls(system, format_lsn(lsn), None, 0, snapshot, VERSION)

    @classmethod
    def within(
        cls, system: str, lsn: str, index: int, part: int, snapshot: tuple[TableProgress, ...]
    ) -> "SourcePosition":
        """Return a position inside of the transaction whose commit is at `lsn`."""
        return cls(system, lsn, index, part, snapshot, VERSION)

    def with_request(self, request: TableProgress) -> "SourcePosition":
        """Return the same place with one more table to read."""
        return msgspec.structs.replace(self, snapshot=add_request(self.snapshot, request))

    @classmethod
    def decode(cls, position: bytes) -> "SourcePosition":
        """Read what `encode` wrote. Raises FatalError for anything else."""
        try:
            found = _DECODER.decode(position)
            parse_lsn(found.lsn)
            if found.version != VERSION:
                raise ValueError(f"version {found.version}")
        except (msgspec.DecodeError, ValueError) as error:
            raise foreign_position(position, reason=error) from error
        return found


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(SourcePosition)
