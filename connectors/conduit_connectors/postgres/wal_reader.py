"""WalReader: turns the messages of a replication stream into changes with positions, and gives chunks their place."""

from collections import deque

import trio

from conduit_connectors.change_queue import ChangeQueue
from conduit_connectors.postgres.catalog import measure_log, read_key
from conduit_connectors.postgres.changes import (
    ALL_GIVEN,
    NOTHING_GIVEN,
    ORIGIN,
    Change,
    OpenTransaction,
    PublishedRelation,
    RowChange,
    changed_rows,
    changes_of_message,
    hold_usual_change,
    truncate_change,
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
from conduit_connectors.postgres.position import VERSION, SourcePosition, TableProgress
from conduit_connectors.postgres.publication import Publication
from conduit_connectors.postgres.replication import read_begin, read_commit
from conduit_connectors.postgres.schemas import TypeCatalog
from conduit_connectors.postgres.session import DatabaseSession
from conduit_connectors.postgres.snapshot import Snapshot
from conduit_py.sdk import FatalError

_DELIVERED_MAX = 10_000


class WalReader:
    """Handles the messages of a stream, in order, from `start` on. What it made of them is in `ready`."""

    def __init__(
        self,
        start: SourcePosition,
        publication: Publication,
        oids: dict[str, int],
        session: DatabaseSession,
        *,
        chunk_size: int,
    ) -> None:
        self.ready: ChangeQueue[SourcePosition] = ChangeQueue()
        self.snapshot = Snapshot(publication.name, oids, start.snapshot, chunk_size)
        self.lsn = start.log_place
        """Everything before it was handled."""
        self._given_lsn = self._resume_lsn = self.lsn
        self._resume_at = NOTHING_GIVEN if start.index is None else (start.index, start.part)
        self._system = start.system
        self._publication = publication
        self._oids = oids
        self._session = session
        self._asking = trio.Lock()
        self._types = TypeCatalog()
        self._relations: dict[int, PublishedRelation | None] = {}
        self._transaction: OpenTransaction | None = None
        self._delivered: deque[int] = deque(maxlen=_DELIVERED_MAX)

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    @property
    def needs_chunk(self) -> bool:
        return self.snapshot.needs_chunk and self._transaction is None

    def progress(self) -> SourcePosition:
        """Return the position after everything that was handled. Not for the inside of a transaction."""
        assert self._transaction is None
        self._given_lsn = self.lsn
        return SourcePosition.at(self._system, self.lsn, self.snapshot.progress)

    def pass_idle(self, lsn: int) -> None:
        """The server has nothing for this stream before this place."""
        if self._transaction is None:
            self.lsn = max(self.lsn, lsn)

    def request(self, table: TableProgress, oid: int) -> None:
        """Read one more table, after the others. Changes that are ready have the request in their positions too."""
        self.snapshot.add_request(table, oid)
        self.ready.move(lambda position: position.with_request(table))

    async def select_chunk(self) -> None:
        """Select the next chunk of the snapshot."""
        async with self._asking:
            await self.snapshot.select_chunk(self._session, self._types, self._delivered)

    async def measure(self) -> tuple[int, int | None]:
        """Return the end of the server's log, and how much of it the slot retains."""
        async with self._asking:
            return await measure_log(self._session, self._publication.slot)

    def handle_usual(self, frame: bytes) -> bool:
        """Handle a frame, and return True, if it is one that most are. The most frequent call of all."""
        transaction = self._transaction
        # The others, such as what an earlier run gave or what changes a chunk, are parsed and handled by `handle`.
        if transaction is None:
            begin = read_begin(frame)
            if begin is not None:
                self._begin(begin)
            return begin is not None
        if transaction.given_until is not NOTHING_GIVEN:
            return False
        snapshot, relations, index = self.snapshot, self._relations, transaction.changes
        if snapshot.chunk is not None:
            relations = {**relations, snapshot.chunk.table.oid: None}
        at = SourcePosition(self._system, transaction.lsn, index, 0, snapshot.progress, VERSION)
        if hold_usual_change(frame, relations, transaction, at, self.ready):
            transaction.changes = index + 1
            return True
        commit = read_commit(frame)
        if commit is not None:
            self._commit(commit)
        return commit is not None

    async def handle(self, message: Message) -> None:
        """Handle one message. Raises FatalError for what cannot be read."""
        match message:
            case InsertMessage() | UpdateMessage() | DeleteMessage():
                self._handle_change(message)
            case BeginMessage():
                self._begin(message)
            case CommitMessage():
                self._commit(message)
            case RelationMessage():
                await self._handle_relation(message)
            case TruncateMessage():
                self._handle_truncate(message)
            case LogicalMessage():
                # The place of the last record, not of the watermark: a row has the same position in every run.
                for change in self.snapshot.finish_chunk(message, self._system, self._given_lsn):
                    self.ready.append(change)
            case OriginMessage():
                transaction = self._open_transaction
                # Another map: changes that are ready have the old one.
                transaction.metadata = {**transaction.metadata, ORIGIN: message.name}
            case TypeMessage():
                self._types.forget()

    @property
    def _open_transaction(self) -> OpenTransaction:
        if self._transaction is None:
            raise FatalError("PostgreSQL sent a change outside of a transaction", suggestion="report it")
        return self._transaction

    def _begin(self, message: BeginMessage) -> None:
        transaction = self._transaction = OpenTransaction.of(message)
        # The server sends a transaction whose commit is at the start again.
        if message.commit_lsn < self._resume_lsn:
            transaction.given_until = ALL_GIVEN
        elif message.commit_lsn == self._resume_lsn:
            transaction.given_until = self._resume_at

    def _handle_change(self, message: RowChange) -> None:
        transaction, relation = self._open_transaction, self._relation(message.relation)
        index = transaction.changes
        transaction.changes += 1
        if relation is None:
            return
        for row in changed_rows(message):
            self.snapshot.drop(relation, row)
        try:
            changes = changes_of_message(message, relation, relation.origin(transaction), self._place(index, 0))
        except ValueError as error:
            raise FatalError(
                f"a change of {relation.collection} at {transaction.lsn} cannot be read: {error}",
                suggestion="report it with the definition of the table",
            ) from error
        for change in changes:
            self._give(change)

    def _handle_truncate(self, message: TruncateMessage) -> None:
        transaction = self._open_transaction
        index = transaction.changes
        transaction.changes += 1
        for part, oid in enumerate(message.relations):
            self.snapshot.truncate(oid)
            relation = self._relation(oid)
            if relation is not None:
                self._give(truncate_change(relation.origin(transaction), self._place(index, part)))

    def _place(self, index: int, part: int) -> SourcePosition:
        return SourcePosition.within(self._system, self._open_transaction.lsn, index, part, self.snapshot.progress)

    def _give(self, change: Change) -> None:
        if not self._open_transaction.has_given(change.position):
            self.ready.hold(*change.parts)

    def _commit(self, message: CommitMessage) -> None:
        self._delivered.append(self._open_transaction.xid)
        self.lsn = max(self.lsn, message.end_lsn)
        if self.ready.release(SourcePosition.at(self._system, message.end_lsn, self.snapshot.progress)):
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
        if self._publication.tables is not None and not known:
            self._relations[message.oid] = None
            return
        columns = [(column.name, column.type_oid, column.type_modifier) for column in message.columns]
        async with self._asking:
            await self._types.learn(self._session, columns)
            key = tuple(column.name for column in message.columns if column.identity)
            if message.replica_identity == "f":
                key = await read_key(self._session, message.oid)
        shape = self._types.table_shape(f"{message.schema}.{message.name}", columns, key)
        self._relations[message.oid] = PublishedRelation(message, shape, key)
