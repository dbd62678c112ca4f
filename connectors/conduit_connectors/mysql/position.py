"""BinlogPosition: where a source is in the binary log, and which tables it still has to read as a whole."""

import re
from collections.abc import Iterable

import msgspec

from conduit_connectors.mysql.binlog_events import Gtid
from conduit_py.sdk import foreign_position

VERSION = 1
_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")


class GtidState(msgspec.Struct, frozen=True):
    """The last transaction of each domain: everything up to these is handled."""

    last: tuple[Gtid, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.last))

    @classmethod
    def parse(cls, text: str) -> "GtidState":
        """Read what `str` wrote, or what the server writes. Raises ValueError for anything else."""
        return cls(tuple(sorted(parse_gtid(each) for each in text.split(",")))) if text else cls()

    def plus(self, gtid: Gtid) -> "GtidState":
        return GtidState(tuple(sorted([*(each for each in self.last if each.domain != gtid.domain), gtid])))

    def is_before(self, gtids: Iterable[Gtid]) -> bool:
        """True if these are as far as this state in each of its domains, or farther."""
        found: dict[int, int] = {}
        for each in gtids:
            found[each.domain] = max(found.get(each.domain, 0), each.sequence)
        return all(found.get(each.domain, 0) >= each.sequence for each in self.last)


def parse_gtid(text: str) -> Gtid:
    """Read a transaction's number, such as 0-1-7. Raises ValueError for anything else."""
    found = _GTID.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"not a GTID of MariaDB: {text[:50]!r}")
    return Gtid(int(found[1]), int(found[2]), int(found[3]))


class UnreadTable(msgspec.Struct, frozen=True, array_like=True):
    """A table whose rows are not all read yet. `key` is that of the last row that was, as literals of SQL."""

    table: str
    key: tuple[str, ...] | None = None
    where: str | None = None
    request: str | None = None
    """What tells the request of an operator from others; None for a table that is read at the start."""
    until: tuple[str, ...] | None = None
    """The last key when the first chunk was selected: the stream has all rows that come behind it later."""


class BinlogPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything up to `gtids` was given, and of `transaction` the records up to `event`, `row` and `part`."""

    server: str
    gtids: str
    transaction: str | None = None
    """The GTID of a transaction of which a part was given."""
    event: int = 0
    """The number, in the transaction, of the event with the last row that was given."""
    row: int = 0
    part: int = 0
    """Which of the records of that row was given last."""
    snapshot: tuple[UnreadTable, ...] = ()
    version: int = 0

    @property
    def state(self) -> GtidState:
        return GtidState.parse(self.gtids)

    @property
    def place(self) -> tuple[int, int, int]:
        """The place of the last record inside of `transaction`."""
        return self.event, self.row, self.part

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def at(cls, server: str, state: GtidState, snapshot: tuple[UnreadTable, ...]) -> "BinlogPosition":
        return cls(server, str(state), snapshot=snapshot, version=VERSION)

    @classmethod
    def decode(cls, position: bytes) -> "BinlogPosition":
        """Read what `encode` wrote. Raises FatalError for anything else."""
        try:
            found = _DECODER.decode(position)
            GtidState.parse(found.gtids)
            if found.transaction is not None:
                parse_gtid(found.transaction)
            if found.version != VERSION:
                raise ValueError(f"version {found.version}")
        except (msgspec.DecodeError, ValueError) as error:
            raise foreign_position(position, reason=error) from error
        return found


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(BinlogPosition)
