"""The MySQL source: rows of tables as they are, and every change of them, from the binary log of MariaDB."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack
from uuid import uuid4

import trio

from conduit_connectors.mysql.address import parse_address
from conduit_connectors.mysql.binlog_events import EventMalformed
from conduit_connectors.mysql.binlog_stream import BinlogStream, malformed
from conduit_connectors.mysql.catalog import read_collations
from conduit_connectors.mysql.log_cursor import parse_file_number
from conduit_connectors.mysql.log_reader import BinlogReader
from conduit_connectors.mysql.position import BinlogPosition, UnreadTable
from conduit_connectors.mysql.server_checks import WantedTables, check_server, find_start
from conduit_connectors.mysql.session import DatabaseStatements, StatementDenied
from conduit_connectors.mysql.snapshot import check_request
from conduit_connectors.mysql.source_options import SourceArguments, SourceOptions
from conduit_py import sdk
from conduit_py.sdk import FatalError, Lag, Reading, SnapshotRequest

_EVENTS_MAX = 1_000


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of tables, and then every change of them in the order of the binary log. Needs MariaDB 10.5.

    Resumes exactly after any change, and after any row of a snapshot, also if the process was killed. Everything that
    is committed after the first start is read at least once; exactly-once in an exactly-once pipeline. If the server
    does not have the log after the stored position any more, the source refuses to run.

    Rows are read in chunks while their changes stream, without locks (`snapshot`). A row that changes meanwhile is read
    before its change or after it, as the log has it. So a destination with a row for each key has the state of the
    table when the snapshot ends. The columns of each table are announced as its schema.

    A change of a key is a `delete` and a `create`. A truncate or drop is one `delete` without a key for each table,
    with `conduit.truncate` in its metadata. Columns that an update did not log are absent and named in
    `conduit.unchanged`. Values that have no exact Python form are text, and their types are in `mysql.text`.
    """

    requires: ClassVar = {"pymysql": "conduit-dataflow[mysql]"}
    has_groups: ClassVar[bool] = True

    _session: DatabaseStatements | None = None
    _stream: BinlogStream | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "the log of changes has one order"

    @property
    def endless(self) -> bool:
        return True

    @property
    def gives(self) -> Any:
        return dict[str, Any] | None

    def datasets(self) -> Sequence[sdk.Dataset]:
        return sdk.Dataset.tables(self.options.url.get_secret_value(), self.options.tables or (), port=3306)

    async def probe(self) -> str:
        session = await DatabaseStatements.connect(self.options.url.get_secret_value())
        try:
            return f"server {(await session.run('SELECT version()'))[0][0]}"
        finally:
            session.close()

    async def open(self, position: bytes | None) -> None:
        at = None if position is None else BinlogPosition.decode(position)
        options, url = self.options, self.options.url.get_secret_value()
        database = parse_address(url)["database"]
        session = self._session = await DatabaseStatements.connect(url)
        try:
            server = await check_server(session)
            collations = await read_collations(session)
        except StatementDenied as error:
            raise FatalError(f"cannot read the settings: {error}", suggestion="check the server") from error
        self._wanted = WantedTables.of(database, options.tables, ignores_case=server.ignores_case)
        start = await find_start(
            session,
            server,
            self._wanted,
            at,
            snapshot=options.snapshot == "initial",
            follow=options.other_server == "follow",
            first=options.start,
        )
        self._first = start if at is None else None
        self._log = BinlogReader(
            start,
            self._wanted,
            session,
            collations,
            chunk_size=options.chunk_size,
            ignores_unlogged=options.unlogged_changes == "ignore",
        )
        self._last = start.encode()
        self._requested = False
        self._heartbeat_at = trio.current_time() + options.heartbeat_seconds
        self._stream = await BinlogStream.start(url, options.server_id, start.state)

    def start_position(self) -> bytes | None:
        return None if self._first is None else self._first.encode()

    async def read(self, n: int) -> Reading:
        log = self._log
        while not log.ready:
            # A request that waits already changes nothing, and a reading must not be empty.
            if self._requested and not log.in_transaction and (progress := self._progress()) is not None:
                return Reading([], position=progress)
            if log.needs_chunk:
                await self._select_chunk()
            all_taken = await self._take_events(n)
            if log.ready or log.needs_chunk or not all_taken:
                continue
            if trio.current_time() >= self._heartbeat_at:
                self._heartbeat_at = trio.current_time() + self.options.heartbeat_seconds
                if not log.in_transaction and (progress := self._progress()) is not None:
                    return Reading([], position=progress)
            with trio.move_on_at(self._heartbeat_at):
                await self._streaming.wait()
        reading, self._last = log.ready.take(n)
        self._requested = False
        return reading

    async def request_snapshot(self, request: SnapshotRequest) -> None:
        table = await check_request(self._asked, self._wanted, request)
        self._log.request(UnreadTable(table.collection, None, request.where, uuid4().hex[:8]))
        self._requested = True
        self._streaming.wake()

    async def lag(self) -> Lag | None:
        place = self._log.cursor.place
        if place is None:
            return None
        try:
            files = await self._asked.run("SHOW BINARY LOGS")
        except StatementDenied:
            return None  # it needs the right BINLOG MONITOR, and nothing else does
        sizes = {parse_file_number(file[0]): int(file[1]) for file in files}
        later = sum(size for number, size in sizes.items() if number > place[0])
        return Lag(bytes=max(0, sizes.get(place[0], 0) - place[1]) + later)

    def check_position(self, position: bytes) -> None:
        BinlogPosition.decode(position)

    def locate_record(self, position: bytes) -> str | None:
        at = BinlogPosition.decode(position)
        if at.transaction is None:
            return f"binary log of MariaDB at {at.gtids or 'its beginning'}"
        return f"binary log of MariaDB in {at.transaction}, event {at.event + 1}, row {at.row + 1}"

    async def teardown(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._session is not None:
            self._session.close()

    @property
    def _streaming(self) -> BinlogStream:
        assert self._stream is not None, "the source is not open"
        return self._stream

    @property
    def _asked(self) -> DatabaseStatements:
        assert self._session is not None, "the source is not open"
        return self._session

    async def _select_chunk(self) -> None:
        place = self._log.cursor.place
        assert place is not None
        await self._log.snapshot.select_chunk(self._asked, place)
        self._log.give_chunk()

    async def _take_events(self, n: int) -> bool:
        """Handle what is here already, until there are records to return. Return True if nothing is left."""
        try:
            for _ in range(_EVENTS_MAX):
                event = self._streaming.take()
                if event is None:
                    return True
                await self._log.handle(event)
                if len(self._log.ready) >= n:
                    return False
        except EventMalformed as wrong:
            raise malformed(wrong) from wrong
        # Events that make no record, such as those of other tables, must not keep the event loop.
        await trio.lowlevel.checkpoint()
        return False

    def _progress(self) -> bytes | None:
        """Return the position after everything that was read, if it is new."""
        self._requested = False
        progress = self._log.progress()
        if progress == self._last:
            return None
        self._last = progress
        return progress
