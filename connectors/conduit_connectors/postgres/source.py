"""The PostgreSQL source: rows of tables as they are, and every change of them, by logical replication."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import trio

from conduit_connectors.postgres.position import SourcePosition
from conduit_connectors.postgres.publication import Publication, drop_slot, prepare, start_stream
from conduit_connectors.postgres.replication import Keepalive, ReplicationStream
from conduit_connectors.postgres.session import DatabaseSession, StatementFailed, probe_server
from conduit_connectors.postgres.snapshot_request import check_request
from conduit_connectors.postgres.source_options import SourceArguments, SourceOptions
from conduit_connectors.postgres.wal_reader import WalReader
from conduit_py import sdk
from conduit_py.sdk import Lag, Reading, SnapshotRequest, TransientError

_CONFIRM_SECONDS = 1.0
_HURRY_SECONDS = 0.1
_LEAVE_SECONDS = 3.0
_MESSAGES_MAX = 1_000
_PAUSE_SECONDS = 0.002
_GATHER_SECONDS = 0.001
"""How long a record may wait for others while they come one after the other."""


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of tables, and then every change of them in the order of their commits. Needs PostgreSQL 14.

    Resumes exactly after any change, and after any row of a snapshot, also if the process was killed. Everything that
    is committed after the slot was created is read at least once; exactly-once in an exactly-once pipeline. The slot
    moves only after the progress of the pipeline is durable. If the server does not have the changes after the stored
    position any more, the source refuses to run.

    Rows are read in chunks while their changes stream, without locks (`snapshot`). A row that changes meanwhile is read
    as its change. So a destination with a row for each key has the state of the table when the snapshot ends. A table
    can be requested again while the source runs. The columns of each table are announced as its schema.

    A change of a key is a `delete` and a `create`. A truncate is one `delete` without a key for each table, with
    `postgres.truncate` in its metadata. Large values that an update did not change are absent and named in
    `postgres.unchanged`. Values that have no exact Python form are text, and their types are in `postgres.text`.
    """

    requires: ClassVar = {"psycopg": "conduit-dataflow[postgres]"}
    has_groups: ClassVar[bool] = True

    _session: DatabaseSession | None = None
    _replication: DatabaseSession | None = None
    _stream: ReplicationStream | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def reads_alone(self) -> str:
        return "a replication slot has one reader, and changes have one order"

    @property
    def endless(self) -> bool:
        return True

    @property
    def gives(self) -> Any:
        return dict[str, Any] | None

    def datasets(self) -> Sequence[sdk.Dataset]:
        url = self.options.url.get_secret_value()
        return sdk.Dataset.tables(url, self.options.tables or (), port=5432, schema="public")

    async def probe(self) -> str:
        return await probe_server(self.options.url.get_secret_value())

    async def open(self, position: bytes | None) -> None:
        at = None if position is None else SourcePosition.decode(position)
        url = self.options.url.get_secret_value()
        self._session = await DatabaseSession.connect(url)
        self._replication = await DatabaseSession.connect(url, replication="database")
        options = self.options
        self._publication = Publication(options.publication or options.slot, options.slot, options.tables)
        oids, start = await prepare(
            self._session, self._replication, self._publication, at, snapshot=options.snapshot == "initial"
        )
        self._first = start if at is None else None
        self._log = WalReader(start, self._publication, oids, self._session, chunk_size=options.chunk_size)
        self._announces = False
        self._waiting = trio.CancelScope()
        self._confirmed = start.log_place
        self._hurries = False
        self._woken_at = 0.0
        self._confirmed_at = trio.current_time()
        self._heartbeat_at = self._confirmed_at + options.heartbeat_seconds
        self._last = start.encode()
        self._stream = await start_stream(self._replication, self._publication, start.log_place)

    def start_position(self) -> bytes | None:
        return None if self._first is None else self._first.encode()

    async def read(self, n: int) -> Reading:
        log = self._log
        while not log.ready:
            # Inside of a transaction, the records that follow have the request in their positions.
            if self._announces and not log.in_transaction:
                self._announces = False
                return Reading([], position=self._advance())
            if log.needs_chunk:
                await log.select_chunk()
            all_taken = await self._take_messages(n)
            if log.ready or log.needs_chunk or not all_taken:
                continue
            if trio.current_time() >= self._heartbeat_at:
                progress = await self._beat()
                if progress is not None:
                    return Reading([], position=progress)
            with trio.move_on_at(self._heartbeat_at) as self._waiting:
                await self._wait()
        reading, self._last = log.ready.take(n)
        self._announces = False
        return reading

    async def request_snapshot(self, request: SnapshotRequest) -> None:
        url = self.options.url.get_secret_value()
        table, oid = await check_request(url, self._publication, request)
        # No await from here on: the request is in the positions of all records that `read` returns, or in none.
        self._log.request(table, oid)
        self._announces = True
        self._waiting.cancel()

    async def ack(self, positions: Sequence[bytes]) -> None:
        # Invariant 2: the slot moves only here. Before this the server must have every change that follows.
        self._confirmed = max(self._confirmed, SourcePosition.decode(positions[-1]).log_place)
        if self._hurries or trio.current_time() >= self._confirmed_at + _CONFIRM_SECONDS:
            await self._confirm()

    async def lag(self) -> Lag | None:
        here, retained = await self._log.measure()
        return Lag(bytes=max(0, here - self._log.lsn), retained_bytes=retained)

    def check_position(self, position: bytes) -> None:
        SourcePosition.decode(position)

    def locate_record(self, position: bytes) -> str | None:
        at = SourcePosition.decode(position)
        place = f"log of PostgreSQL at {at.lsn}"
        return place if at.index is None else f"{place}, change {at.index + 1} of its transaction"

    async def on_deleted(self) -> None:
        # A slot that nobody reads keeps the log until the disk is full.
        session = await DatabaseSession.connect(self.options.url.get_secret_value())
        try:
            await drop_slot(session, self.options.slot)
        finally:
            session.close()

    async def teardown(self) -> None:
        try:
            if self._stream is not None:
                with trio.move_on_after(_LEAVE_SECONDS):
                    await self._confirm()
                    await self._stream.end()
        except (TransientError, StatementFailed):
            pass  # the slot stays where it is, and the next run confirms again
        finally:
            for session in (self._session, self._replication):
                if session is not None:
                    session.close()

    @property
    def _streaming(self) -> ReplicationStream:
        assert self._stream is not None, "the source is not open"
        return self._stream

    async def _take_messages(self, n: int) -> bool:
        """Handle what is here already, until there are records to return. Return True if nothing is left."""
        log, take = self._log, self._streaming.take
        try:
            # Most messages are one record.
            for _ in range(min(_MESSAGES_MAX, n - len(log.ready))):
                frame = take()
                if frame is None:
                    return True
                if not log.handle_usual(frame):
                    await self._handle(frame)
        except StatementFailed as error:
            raise self._publication.explain(error) from error
        if not log.ready:
            # Messages that make no record, such as those of other tables, must not keep the event loop.
            await trio.lowlevel.checkpoint()
        return False

    async def _wait(self) -> None:
        """Wait until more is here; in a stream that does not pause, until there is enough of it to be worth a turn."""
        await self._streaming.wait()
        if trio.current_time() < self._woken_at + _PAUSE_SECONDS:
            await trio.sleep(_GATHER_SECONDS)
        self._woken_at = trio.current_time()

    async def _handle(self, frame: bytes) -> None:
        message = self._streaming.parse(frame)
        if not isinstance(message, Keepalive):
            await self._log.handle(message)
            return
        self._log.pass_idle(message.end)
        if message.reply_requested:
            # A server that shuts down asks until all is confirmed. So there is progress to give now.
            self._hurries = True
            self._heartbeat_at = min(self._heartbeat_at, self._confirmed_at + _HURRY_SECONDS)

    async def _beat(self) -> bytes | None:
        """Ask the server where it is. Return the progress since the last record, if there is any."""
        self._heartbeat_at = trio.current_time() + self.options.heartbeat_seconds
        await self._confirm(reply_requested=True)
        if self._log.in_transaction:
            return None
        before = self._last
        return None if self._advance() == before else self._last

    def _advance(self) -> bytes:
        """Return the progress since the last record, if no transaction is open."""
        self._last = self._log.progress().encode()
        return self._last

    async def _confirm(self, *, reply_requested: bool = False) -> None:
        self._confirmed_at = trio.current_time()
        await self._streaming.confirm(self._confirmed, reply_requested=reply_requested)
