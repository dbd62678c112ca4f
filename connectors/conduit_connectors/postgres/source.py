"""The PostgreSQL source: rows of tables as they are, and every change of them, by logical replication."""

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import trio

from conduit_connectors.postgres.catalog import measure_log, read_key
from conduit_connectors.postgres.changes import (
    LSN,
    ORIGIN,
    OpenTransaction,
    PublishedRelation,
    changed_rows,
    records_of_change,
    truncate_record,
)
from conduit_connectors.postgres.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    Message,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
)
from conduit_connectors.postgres.position import SourcePosition
from conduit_connectors.postgres.publication import Publication, drop_slot, prepare, start_stream
from conduit_connectors.postgres.ready_records import ReadyRecords
from conduit_connectors.postgres.replication import Keepalive, ReplicationStream, format_lsn
from conduit_connectors.postgres.schemas import TypeCatalog
from conduit_connectors.postgres.session import DatabaseSession, StatementFailed, probe_server
from conduit_connectors.postgres.snapshot import Snapshot
from conduit_connectors.postgres.snapshot_request import check_request
from conduit_connectors.postgres.source_options import SourceArguments, SourceOptions
from conduit_py import sdk
from conduit_py.sdk import FatalError, Lag, Reading, Record, SnapshotRequest, TransientError

_CONFIRM_SECONDS = 1.0
_HURRY_SECONDS = 0.1
_LEAVE_SECONDS = 3.0
_DELIVERED_MAX = 10_000
_MESSAGES_MAX = 1_000


class Source(sdk.SourceConnector[SourceOptions]):
    """The rows of tables, and then every change of them in the order of their commits. Needs PostgreSQL 14.

    Resumes exactly after any change, and after any row of a snapshot, also if the process was killed. Everything that
    is committed after the slot was created is read at least once; exactly-once in an exactly-once pipeline. The slot
    moves only after the progress of the pipeline is durable. If the server does not have the changes after the stored
    position any more, the source refuses to run.

    Rows are read in chunks while their changes stream, without locks (`snapshot`). A row that changes meanwhile is read
    as its change, so a destination with a row for each key has the state of the table when the snapshot ends. A table
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

    @property
    def endless(self) -> bool:
        return True

    @property
    def gives(self) -> Any:
        return dict[str, Any] | None

    async def probe(self) -> str:
        return await probe_server(self.options.url.get_secret_value())

    async def open(self, position: bytes | None) -> None:
        at = None if position is None else SourcePosition.decode(position)
        url = self.options.url.get_secret_value()
        self._session = await DatabaseSession.connect(url)
        self._replication = await DatabaseSession.connect(url, replication="database")
        options = self.options
        self._publication = Publication(options.publication or options.slot, options.slot, options.tables)
        self._oids, start = await prepare(
            self._session, self._replication, self._publication, at, snapshot=options.snapshot == "initial"
        )
        self._first = start if at is None else None
        self._system = start.system
        self._lsn = self._given_lsn = self._resume_lsn = start.log_place
        self._resume_at = None if start.index is None else (start.index, start.part)
        self._snapshot = Snapshot(self._publication.name, self._oids, start.snapshot, options.chunk_size)
        self._relations: dict[int, PublishedRelation | None] = {}
        self._types = TypeCatalog()
        self._transaction: OpenTransaction | None = None
        self._ready = ReadyRecords()
        self._announces = False
        self._waiting = trio.CancelScope()
        self._delivered: deque[int] = deque(maxlen=_DELIVERED_MAX)
        self._asking = trio.Lock()
        self._confirmed = self._lsn
        self._hurries = False
        self._confirmed_at = trio.current_time()
        self._heartbeat_at = self._confirmed_at + options.heartbeat_seconds
        self._last = start.encode()
        self._stream = await start_stream(self._replication, self._publication, self._lsn)

    def start_position(self) -> bytes | None:
        return None if self._first is None else self._first.encode()

    async def read(self, n: int) -> Reading:
        while not self._ready:
            # Inside of a transaction, the records that follow have the request in their positions.
            if self._announces and self._transaction is None:
                self._announces = False
                return Reading([], position=self._advance())
            if self._chunk_is_due:
                async with self._asking:
                    await self._snapshot.select_chunk(self._asked, self._types, self._delivered)
            all_taken = await self._take_messages(n)
            if self._ready or self._chunk_is_due or not all_taken:
                continue
            if trio.current_time() >= self._heartbeat_at:
                progress = await self._beat()
                if progress is not None:
                    return Reading([], position=progress)
            with trio.move_on_at(self._heartbeat_at) as self._waiting:
                await self._streaming.wait()
        reading = self._ready.take(n)
        self._last, self._announces = reading.records[-1].position, False
        return reading

    async def request_snapshot(self, request: SnapshotRequest) -> None:
        url = self.options.url.get_secret_value()
        table, oid = await check_request(url, self._publication, request)
        # No await from here on: the request is in the positions of all records that `read` returns, or in none.
        self._snapshot.add_request(table, oid)
        self._ready.add_request(table)
        self._announces = True
        self._waiting.cancel()

    async def ack(self, positions: Sequence[bytes]) -> None:
        # Invariant 2: the slot moves only here. Before this the server must have every change that follows.
        self._confirmed = max(self._confirmed, SourcePosition.decode(positions[-1]).log_place)
        if self._hurries or trio.current_time() >= self._confirmed_at + _CONFIRM_SECONDS:
            await self._confirm()

    async def lag(self) -> Lag | None:
        async with self._asking:
            here, retained = await measure_log(self._asked, self.options.slot)
        return Lag(bytes=max(0, here - self._lsn), retained_bytes=retained)

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
    def _chunk_is_due(self) -> bool:
        return self._snapshot.needs_chunk and self._transaction is None

    @property
    def _streaming(self) -> ReplicationStream:
        assert self._stream is not None, "the source is not open"
        return self._stream

    @property
    def _asked(self) -> DatabaseSession:
        assert self._session is not None, "the source is not open"
        return self._session

    async def _take_messages(self, n: int) -> bool:
        """Handle what is here already, until there are records to return. Return True if nothing is left."""
        try:
            for _ in range(_MESSAGES_MAX):
                taken = self._streaming.take()
                if taken is None:
                    return True
                await self._handle(taken)
                if len(self._ready) >= n:
                    return False
        except StatementFailed as error:
            raise self._publication.explain(error) from error
        # Messages that make no record, such as those of other tables, must not keep the event loop.
        await trio.lowlevel.checkpoint()
        return False

    async def _handle(self, message: Message | Keepalive) -> None:
        match message:
            case InsertMessage() | UpdateMessage() | DeleteMessage():
                self._handle_change(message)
            case BeginMessage():
                self._transaction = OpenTransaction.of(message)
                # The server sends a transaction whose commit is at the start again.
                self._transaction.skipped = message.commit_lsn < self._resume_lsn
            case CommitMessage():
                self._commit(message)
            case RelationMessage():
                await self._handle_relation(message)
            case TruncateMessage():
                self._handle_truncate(message)
            case LogicalMessage():
                for row in self._snapshot.finish_chunk(message):
                    # The place of the last record, not of the watermark: a row has the same position in every run.
                    at = SourcePosition.at(self._system, self._given_lsn, row.progress)
                    self._ready.append(row.record, at, row.schema)
            case Keepalive():
                if self._transaction is None:
                    self._lsn = max(self._lsn, message.end)
                if message.reply_requested:
                    # A server that shuts down asks until all is confirmed. So there is progress to give now.
                    self._hurries = True
                    self._heartbeat_at = min(self._heartbeat_at, self._confirmed_at + _HURRY_SECONDS)
            case OriginMessage():
                self._open_transaction.metadata[ORIGIN] = message.name
            case TypeMessage():
                self._types.forget()

    @property
    def _open_transaction(self) -> OpenTransaction:
        if self._transaction is None:
            raise FatalError("PostgreSQL sent a change outside of a transaction", suggestion="report it")
        return self._transaction

    def _handle_change(self, change: InsertMessage | UpdateMessage | DeleteMessage) -> None:
        transaction, relation = self._open_transaction, self._relation(change.relation)
        index = transaction.changes
        transaction.changes += 1
        if relation is None:
            return
        for row in changed_rows(change) if self._snapshot.progress else ():
            self._snapshot.drop(relation, row)
        try:
            records = records_of_change(change, relation, transaction.metadata)
        except ValueError as error:
            raise FatalError(
                f"a change of {relation.collection} at {format_lsn(transaction.commit_lsn)} cannot be read: {error}",
                suggestion="report it with the definition of the table",
            ) from error
        for part, record in enumerate(records):
            self._give(record, relation, index, part)

    def _handle_truncate(self, message: TruncateMessage) -> None:
        transaction = self._open_transaction
        index = transaction.changes
        transaction.changes += 1
        for part, oid in enumerate(message.relations):
            self._snapshot.truncate(oid)
            relation = self._relation(oid)
            if relation is not None:
                self._give(truncate_record(relation, transaction.metadata), relation, index, part)

    def _give(self, record: Record, relation: PublishedRelation, index: int, part: int) -> None:
        transaction = self._open_transaction
        if transaction.skipped:
            return
        # Invariant 11: the end of the last run may have cut this transaction after its first records.
        if self._resume_at and transaction.commit_lsn == self._resume_lsn and (index, part) <= self._resume_at:
            return
        lsn, progress = transaction.metadata[LSN], self._snapshot.progress
        self._ready.hold(record, SourcePosition.within(self._system, lsn, index, part, progress), relation.schema)

    def _commit(self, message: CommitMessage) -> None:
        self._delivered.append(self._open_transaction.xid)
        self._lsn = max(self._lsn, message.end_lsn)
        if self._ready.release(SourcePosition.at(self._system, message.end_lsn, self._snapshot.progress)):
            self._given_lsn = message.end_lsn
        self._transaction = None

    def _relation(self, oid: int) -> PublishedRelation | None:
        try:
            return self._relations[oid]
        except KeyError:
            raise FatalError(f"PostgreSQL sent a change of the unknown table {oid}", suggestion="report it") from None

    async def _handle_relation(self, message: RelationMessage) -> None:
        # Without `tables` also one that was added to the publication since. By its number too: a table that is
        # renamed is still the one that was asked for.
        known = f"{message.schema}.{message.name}" in self._oids or message.oid in self._oids.values()
        if self.options.tables is not None and not known:
            self._relations[message.oid] = None
            return
        columns = [(column.name, column.type_oid, column.type_modifier) for column in message.columns]
        async with self._asking:
            await self._types.learn(self._asked, columns)
            key = tuple(column.name for column in message.columns if column.identity)
            if message.replica_identity == "f":
                key = await read_key(self._asked, message.oid)
        shape = self._types.table_shape(f"{message.schema}.{message.name}", columns, key)
        self._relations[message.oid] = PublishedRelation(message, shape, key)

    async def _beat(self) -> bytes | None:
        """Ask the server where it is. Return the progress since the last record, if there is any."""
        self._heartbeat_at = trio.current_time() + self.options.heartbeat_seconds
        await self._confirm(reply_requested=True)
        if self._transaction is not None:
            return None
        before = self._last
        return None if self._advance() == before else self._last

    def _advance(self) -> bytes:
        """Return the progress since the last record, if no transaction is open."""
        self._last = SourcePosition.at(self._system, self._lsn, self._snapshot.progress).encode()
        self._given_lsn = self._lsn
        return self._last

    async def _confirm(self, *, reply_requested: bool = False) -> None:
        self._confirmed_at = trio.current_time()
        await self._streaming.confirm(self._confirmed, reply_requested=reply_requested)
