"""ReplicationStream: the messages of a logical replication slot, and the confirmations that go back."""

import re
from struct import Struct, error
from time import time_ns
from typing import Final

import msgspec

from conduit_connectors.postgres.pgoutput import BeginMessage, CommitMessage, Message, MessageMalformed, parse_message
from conduit_connectors.postgres.session import DatabaseSession, quote_name, quote_text
from conduit_py.sdk import FatalError

EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""Times of the protocol are microseconds since 2000-01-01, which is this much after 1970."""

_XLOG_DATA = Struct("!QQq")
_KEEPALIVE = Struct("!QqB")
_STATUS = Struct("!cQQQqB")


class Keepalive(msgspec.Struct, frozen=True, gc=False):
    """The server has sent everything before `end`."""

    end: int
    reply_requested: bool


class ReplicationStream:
    """The stream of one slot. Only `confirm` moves the slot."""

    def __init__(self, session: DatabaseSession) -> None:
        self._session = session
        self.take = session.take_data
        """Returns the next frame that is here already, or None."""

    @classmethod
    async def start(cls, session: DatabaseSession, slot: str, publication: str, lsn: int) -> "ReplicationStream":
        """Start with the first transaction whose commit is at `lsn` or later."""
        # The server would end a stream whose reader waits for a slow destination. TCP finds out whether the
        # reader is alive, whatever it waits for.
        await session.run("SET wal_sender_timeout = 0")
        await session.run("SET tcp_keepalives_idle = 30")
        await session.run("SET tcp_keepalives_interval = 10")
        await session.run("SET tcp_keepalives_count = 3")
        options = {"proto_version": "1", "publication_names": quote_name(publication), "messages": "true"}
        written = ", ".join(f"{quote_name(name)} {quote_text(value)}" for name, value in options.items())
        await session.start_copy(f"START_REPLICATION SLOT {quote_name(slot)} LOGICAL {format_lsn(lsn)} ({written})")
        return cls(session)

    @staticmethod
    def parse(data: bytes) -> Message | Keepalive:
        """Parse a frame. FatalError if it is malformed."""
        try:
            return parse_frame(data)
        except MessageMalformed as wrong:
            raise FatalError(
                f"PostgreSQL sent what is not in its protocol: {wrong}",
                suggestion="check that nothing between here and the server changes the stream, and report it",
            ) from wrong

    async def wait(self) -> None:
        """Wait until more may be here."""
        await self._session.wait()

    async def confirm(self, lsn: int, *, reply_requested: bool = False) -> None:
        """Let the server delete what is before this LSN. With `reply_requested` it answers with a Keepalive."""
        now = time_ns() // 1000 - EPOCH_MICROSECONDS
        await self._session.send(_STATUS.pack(b"r", lsn, lsn, lsn, now, reply_requested))

    async def end(self) -> None:
        """End the stream. After that the slot can be used by another reader."""
        await self._session.end_copy()


def parse_frame(data: bytes) -> Message | Keepalive:
    """Parse one piece of the stream: a keepalive, or an envelope with a message. Raises MessageMalformed."""
    kind = data[:1]
    try:
        if kind == b"w":
            _XLOG_DATA.unpack_from(data, 1)
            return parse_message(data[1 + _XLOG_DATA.size :])
        if kind == b"k":
            end, _, reply = _KEEPALIVE.unpack(data[1:])
            if reply > 1:
                raise MessageMalformed(f"Keepalive: {reply} in place of 0 or 1")
            return Keepalive(end, reply == 1)
    except error as short:
        name = "XLogData" if kind == b"w" else "Keepalive"
        raise MessageMalformed(f"{name} of {len(data)} bytes: {short}") from None
    raise MessageMalformed(f"an unknown frame {kind!r} of {len(data)} bytes")


def read_begin(frame: bytes) -> BeginMessage | None:
    """Return the same as `parse_frame` for the start of a transaction, in a tenth of the time; None for others."""
    found = frame.startswith(b"w") and frame[25:26] == b"B" and len(frame) == _BEGIN.size
    return BeginMessage(*_BEGIN.unpack(frame)) if found else None


def read_commit(frame: bytes) -> CommitMessage | None:
    """Return the same as `parse_frame` for the end of a transaction, in a tenth of the time; None for others."""
    found = frame.startswith(b"w") and frame[25:27] == b"C\0" and len(frame) == _COMMIT.size
    return CommitMessage(*_COMMIT.unpack(frame)) if found else None


_BEGIN = Struct("!26xQqI")
_COMMIT = Struct("!27xQQq")


def format_lsn(lsn: int) -> str:
    """Return a place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Read what `format_lsn` wrote. Raises ValueError for anything else."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"not a place in the log of PostgreSQL: {text[:50]!r}")
    return int(found[1], 16) << 32 | int(found[2], 16)


_LSN = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
