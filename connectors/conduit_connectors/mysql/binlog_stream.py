"""BinlogStream: the events of the binary log, read in a thread as a replica reads them."""

import threading
from collections import deque
from struct import pack
from typing import Any

import pymysql
import trio

from conduit_connectors.mysql.address import connect, error_code, is_lost, one_line
from conduit_connectors.mysql.binlog_events import (
    FORMAT_DESCRIPTION,
    BinlogEvent,
    EventMalformed,
    parse_format,
    split_event,
)
from conduit_connectors.mysql.position import GtidState
from conduit_connectors.mysql.session import shut_down
from conduit_py.sdk import FatalError, TransientError

HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 120
"""How long a server that should send heartbeats may be silent."""
_WAITING_BYTES_MAX = 4_000_000
_WAITING_MAX = 2_000
_DUMP = 0x12
_LOG_REFUSED = 1236
_START_AGAIN = "reset the position of the source, and read everything again"


class BinlogStream:
    """Events from a thread that reads ahead of `take`, up to a bound. Only events in their order, and then an error."""

    def __init__(self, connection: "pymysql.Connection[Any]", *, checksums: bool) -> None:
        self._connection = connection
        self._checksums = checksums
        self._packets: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closed = False
        self._waits = False
        self._arrived = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._read_packets, name="conduit-binlog", daemon=True)
        self._thread.start()

    @classmethod
    async def start(cls, url: str, server_id: int, after: GtidState) -> "BinlogStream":
        """Start with the first transaction after these. Raises FatalError if the log does not have it any more."""

        def ask_for_events() -> tuple["pymysql.Connection[Any]", bool]:
            connection = connect(url, read_timeout=SILENCE_SECONDS)
            try:
                return connection, _ask_for_events(connection, server_id, after)
            except (pymysql.Error, OSError) as error:
                shut_down(connection)
                raise _stream_error(error) from error

        connection, checksums = await trio.to_thread.run_sync(ask_for_events, abandon_on_cancel=True)
        return cls(connection, checksums=checksums)

    def take(self) -> BinlogEvent | None:
        """Return the next event that is here already. Raises the error that ended the stream."""
        with self._changed:
            if not self._packets:
                if self._error is not None:
                    raise _stream_error(self._error) from self._error
                return None
            packet = self._packets.popleft()
            self._size -= len(packet)
            self._changed.notify()
        try:
            event = split_event(packet, checksums=self._checksums)
            if event.kind == FORMAT_DESCRIPTION:
                self._checksums = parse_format(event)
        except EventMalformed as wrong:
            raise malformed(wrong) from wrong
        return event

    async def wait(self) -> None:
        """Wait until more may be here, or until `wake` is called."""
        with self._changed:
            if self._packets or self._error is not None:
                return
            self._waits = True
        await self._arrived.wait()

    def wake(self) -> None:
        """End a `wait`. Called in the event loop."""
        self._arrived.set()
        self._arrived = trio.Event()

    def close(self) -> None:
        """End the stream and its thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        shut_down(self._connection)

    def _read_packets(self) -> None:
        try:
            while True:
                packet = self._connection._read_packet()
                data = packet.get_all_data()
                if data[:1] != b"\0":
                    # The end of the stream: the server shuts down, or ends this connection.
                    raise pymysql.err.OperationalError(2013, "the server ended the stream")
                with self._changed:
                    self._packets.append(data[1:])
                    self._size += len(data)
                    self._tell()
                    while (self._size > _WAITING_BYTES_MAX or len(self._packets) >= _WAITING_MAX) and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
        except Exception as error:
            with self._changed:
                self._error = error
                self._tell()

    def _tell(self) -> None:
        if self._waits and not self._closed:
            self._waits = False
            try:
                self._token.run_sync_soon(self.wake, idempotent=True)
            except trio.RunFinishedError:
                self._closed = True


def malformed(wrong: EventMalformed) -> FatalError:
    return FatalError(
        f"MariaDB sent what is not in the format of its log: {wrong}",
        suggestion="check the log with mariadb-binlog --verify-binlog-checksum, and report it",
    )


def _ask_for_events(connection: "pymysql.Connection[Any]", server_id: int, after: GtidState) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@global.binlog_checksum")
        [[checksum]] = cursor.fetchall()
        for setting in (
            # The events since MariaDB 10.0.2, and that this reader checks checksums.
            "SET @mariadb_slave_capability = 4",
            f"SET @master_binlog_checksum = '{checksum}'",
            f"SET @slave_connect_state = '{after}'",
            # Without this, the server would go on if it has other transactions than those that were read.
            "SET @slave_gtid_strict_mode = 1",
            "SET @slave_gtid_ignore_duplicates = 0",
            f"SET @master_heartbeat_period = {int(HEARTBEAT_SECONDS * 1e9)}",
            # The server would end a stream whose reader waits for a slow destination.
            "SET net_write_timeout = 31536000",
        ):
            cursor.execute(setting)
    body = pack("<BIHI", _DUMP, 4, 0, server_id)
    connection._write_bytes(pack("<I", len(body)) + body)
    connection._next_seq_id = 1
    return bool(checksum != "NONE")


def _stream_error(error: Exception) -> FatalError | TransientError:
    text, code = one_line(error), error_code(error)
    if code == _LOG_REFUSED and ("purged" in text or "Could not find" in text):
        return FatalError(
            f"the server does not have the changes after the position any more: {text}",
            suggestion=f"{_START_AGAIN}; raise binlog_expire_logs_seconds",
        )
    if code == _LOG_REFUSED and ("master's binlog" in text or "binlog on the master" in text):
        return FatalError(
            f"the log of the server does not have the transaction of the position: {text}",
            suggestion=f"check `url`; if the server was restored or created again: {_START_AGAIN}",
        )
    if "same server" in text:
        return FatalError(
            f"another replica has the same number: {text}", suggestion="give each source its own `server_id`"
        )
    if code == 1227 or code == 1045:
        return FatalError(
            f"the user may not read the binary log: {text}", suggestion="GRANT REPLICATION SLAVE ON *.* TO the user"
        )
    if is_lost(error):
        return TransientError(f"MariaDB: {text}", suggestion="check the server and the connection to it")
    return FatalError(f"MariaDB ends the binary log: {text}", suggestion="check the log of the server")
