"""Store: what is kept of every pipeline between runs, and what callers may rely on."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import trio

from conduit_py.errors import EnvironmentUnfit
from conduit_py.positions import PositionHistory
from conduit_py.redaction import SECRETS, secrets_in_text
from conduit_py.status import PipelineState
from conduit_py.store.claim import Claim, ClaimState
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.tables import IntentOutbox, Shards, StoredKeys, Tables

T = TypeVar("T")
Kind: TypeAlias = Literal["position", "trail", "state", "connector", "origin"]


class StoredEntry(NamedTuple):
    """One row of the store. The state of a pipeline itself has node ""."""

    pipeline: str
    kind: Kind
    node: str
    value: bytes


class ConnectorEntry(msgspec.Struct, frozen=True):
    """A connector as it was configured when it last ran, to detect that it was created, updated or deleted."""

    kind: str
    """"source" or "destination"."""
    plugin: str
    """The registered name, or "" when it is not registered."""
    options: dict[str, Any]
    """Plain values that JSON can carry, secrets masked."""
    digest: str
    """In hex, over the unmasked options."""


class Store(ABC):
    """Positions, states and connectors of pipelines.

    A write is durable when it returns: it survives `kill -9` and, on a disk that keeps its word, a
    power cut. It is atomic: all of it or nothing. A write that raises StateFailed, or whose caller is
    cancelled, may or may not have become durable, but never in part. Of two writes of the same thing
    the one that began after the other had returned wins. A read returns only what is durable.

    One trio run uses a store; any number of its tasks may at the same time. After `close` every call
    raises StateFailed.
    """

    letters: DeadLetterStore
    """The dead letters of pipelines that keep them here."""
    place: str = "the state store"
    """What errors call the store: its file, if it has one."""
    waits: bool = True
    """False if `look_at_once` can be called."""

    async def positions(self, pipeline: str) -> dict[str, bytes]:
        """The last durable position of every source that has one."""
        return dict(await self._load(pipeline, "position"))

    async def save_positions(
        self, pipeline: str, positions: Mapping[str, bytes], histories: Mapping[str, PositionHistory] | None = None
    ) -> None:
        """Remember these positions, and histories with them, in one step; sources that are not named keep theirs."""
        rows: list[StoredEntry] = []
        for source, position in positions.items():
            # Checked here: in the group commit it would fail the writes of others too.
            if not isinstance(position, bytes):
                raise TypeError(f"the position of source {source!r} must be bytes, not {type(position).__name__}")
            rows.append(StoredEntry(pipeline, "position", source, position))
        for source, history in (histories or {}).items():
            rows.append(StoredEntry(pipeline, "trail", source, history.encode()))
        if rows:
            await self._save(rows)
        else:
            # Every call is a checkpoint, so that a loop of calls can be cancelled.
            await trio.lowlevel.checkpoint()

    async def start_position(self, pipeline: str, source: str, position: bytes) -> None:
        """Save where a source starts. Does nothing if the source has a position."""
        await self.transact(lambda tables: tables.start_position(pipeline, source, position))

    async def forget_positions(self, pipeline: str, source: str | None = None) -> None:
        """Let one source, or all sources, start from the beginning. Forgetting what is unknown has no effect."""
        await self._forget(pipeline, "position", source)

    async def position_history(self, pipeline: str, source: str) -> PositionHistory:
        """Where a source was, and when; an empty history when nothing is known."""
        value = dict(await self._load(pipeline, "trail")).get(source)
        return (
            PositionHistory()
            if value is None
            else self._decode(_HISTORY, value, f"the history of {source!r} in {pipeline!r}")
        )

    async def forget_position_history(self, pipeline: str, source: str) -> None:
        """Forget where a source was. Forgetting what is unknown has no effect."""
        await self._forget(pipeline, "trail", source)

    async def state(self, pipeline: str) -> PipelineState:
        """The last durable state; that of a pipeline just created when there is none."""
        for _, value in await self._load(pipeline, "state"):
            return self._decode(_STATE, value, f"the state of pipeline {pipeline!r}")
        return PipelineState()

    async def save_state(self, pipeline: str, state: PipelineState) -> None:
        await self._save([StoredEntry(pipeline, "state", "", msgspec.json.encode(state))])

    async def origin(self, pipeline: str) -> str | None:
        """Return the file that a pipeline came from when it last started; None if it is not known."""
        for _, value in await self._load(pipeline, "origin"):
            return value.decode(errors="surrogateescape")
        return None

    async def save_origin(self, pipeline: str, file: str) -> None:
        await self._save([StoredEntry(pipeline, "origin", "", file.encode(errors="surrogateescape"))])

    async def connectors(self, pipeline: str) -> dict[str, ConnectorEntry]:
        """The remembered connectors by node id."""
        return {
            node: self._decode(_ENTRY, value, f"connector {node!r} of pipeline {pipeline!r}")
            for node, value in await self._load(pipeline, "connector")
        }

    async def save_connector(self, pipeline: str, node: str, entry: ConnectorEntry) -> None:
        await self._save([StoredEntry(pipeline, "connector", node, msgspec.json.encode(entry))])

    async def forget_connector(self, pipeline: str, node: str) -> None:
        """Forget one connector. Forgetting what is unknown has no effect."""
        await self._forget(pipeline, "connector", node)

    async def claim(self, owner: str) -> Claim:
        """Take over an owner: once this returns, every earlier claim of it is fenced and cannot commit."""
        return Claim(owner, await self.transact(lambda tables: tables.claim(owner)), self)

    async def claim_state(self, owner: str) -> ClaimState | None:
        """How far an owner has come, without fencing it; None if it was never claimed."""
        return await self.look(lambda tables: tables.claim_state(owner))

    async def reset_claim(self, owner: str) -> None:
        """Let an owner start from the beginning; its claims are fenced.

        Its checkpoint, its state, the keys seen in its own scopes, named OWNER/…, and the positions of its pipeline are
        forgotten, in one transaction.
        """
        await self.transact(lambda tables: tables.reset(owner))

    @property
    def outbox(self) -> IntentOutbox:
        """The messages of committed transactions that are not forwarded yet."""
        return IntentOutbox(self)

    @property
    def seen(self) -> StoredKeys:
        """The keys recorded as seen."""
        return StoredKeys(self)

    @property
    def shards(self) -> Shards:
        """Shards of leased work: who owns each and how far it has come."""
        return Shards(self)

    @asynccontextmanager
    async def run_lock(self, pipeline: str) -> AsyncIterator[None]:
        """Within the block no other server that shares this store runs the pipeline; raises RunElsewhere if one does.

        A store that one process owns has no other server to exclude.
        """
        yield

    def _decode(self, decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]", value: bytes, what: str) -> T:
        try:
            return decoder.decode(value)
        except ValueError as error:
            raise EnvironmentUnfit(
                f"{self.place} holds {what} in a form that cannot be read: {error}",
                suggestion="put back a copy, use the version of conduit-py that wrote it, or choose another place with "
                "--state",
            ) from error

    @abstractmethod
    async def transact(self, work: Callable[[Tables], T]) -> T:
        """Run `work` in one transaction, durable on return; one of our errors undoes it and is raised.

        `work` may run in another thread, and again after a failure: it must touch nothing but the tables.
        """

    @abstractmethod
    async def look(self, work: Callable[[Tables], T]) -> T:
        """Run `work`, which only reads, on what is durable. It may run in another thread."""

    def look_at_once(self, work: Callable[[Tables], T]) -> T:
        """Do what `look` does, without waiting. Only a store in memory can."""
        raise NotImplementedError(f"{self.place} must be waited for")

    @abstractmethod
    async def pipelines(self) -> list[str]:
        """Every pipeline of which anything is kept, sorted."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the writes already begun, then release everything. A second close has no effect."""

    @abstractmethod
    async def _load(self, pipeline: str, kind: Kind) -> list[tuple[str, bytes]]:
        """The durable values of this kind by node, sorted by node."""

    @abstractmethod
    async def _save(self, rows: list[StoredEntry]) -> None:
        """Make these rows durable in one transaction, each replacing the one of the same node and kind."""

    @abstractmethod
    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        """Durably remove the row of one node, or of all nodes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def open_store(state: str | Path) -> Store:
    """The store in a directory, or in PostgreSQL if `state` is written as postgresql://user@host/database.

    Raises EnvironmentUnfit when it cannot be used.
    """
    # Imported late: every backend imports this module.
    from conduit_py.store.sqlite.store import SqliteStore

    scheme, separator, _ = str(state).partition("://")
    # Before anything is tried: the errors of a database quote parts of its address.
    SECRETS.add(*secrets_in_text(str(state)))
    # A Path is always a directory, whatever its name looks like.
    if not separator or isinstance(state, Path):
        return await SqliteStore.open(Path(state))
    if scheme not in ("postgresql", "postgres"):
        raise EnvironmentUnfit(
            f"--state cannot be {scheme}://…",
            suggestion="give a directory, or a PostgreSQL database as postgresql://user@host/database",
        )
    return await _open_postgres(state)


async def _open_postgres(address: str) -> Store:
    try:
        from conduit_py.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise EnvironmentUnfit(
            "a state in PostgreSQL needs psycopg, which is not installed",
            suggestion="pip install 'conduit-dataflow[postgres]'",
        ) from error
    return await PostgresStore.open(address)


_STATE = msgspec.json.Decoder(PipelineState)
_ENTRY = msgspec.json.Decoder(ConnectorEntry)
_HISTORY = msgspec.msgpack.Decoder(PositionHistory)
