"""Claim: the right to commit for one owner, and everything that one transaction makes durable."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import trio

from conduit_py.errors import FatalError

if TYPE_CHECKING:
    from conduit_py.store.store import Store
    from conduit_py.store.tables import TableAccess, Tables

T = TypeVar("T")


class PublishedMessage(msgspec.Struct, frozen=True):
    """A message of the outbox: after the commit the forwarder gives `body` to `target`, which deduplicates by `key`."""

    target: str
    key: bytes
    body: bytes


class ShardChange(msgspec.Struct, frozen=True):
    """Progress in one shard of leased work, refused unless the shard still has `token`.

    Positions are compared byte by byte, so numbers need a fixed width; b"" is the beginning. `start` must
    not lie before the recorded position. `done` closes the shard: it accepts no further change.
    """

    scope: str
    shard: str
    token: str
    start: bytes
    end: bytes
    done: bool = False

    def __post_init__(self) -> None:
        assert self.start < self.end, f"no progress of {self.shard!r} from {self.start!r} to {self.end!r}"


class Changes(msgspec.Struct):
    """Everything one transaction makes durable, all of it or nothing.

    It can be written as MessagePack, because a destination that carries the commit keeps it with its data.
    """

    number: int
    """One more than `Claim.committed`."""
    checkpoint: bytes
    puts: dict[bytes, bytes | None] = {}
    """State of the owner; None deletes."""
    once: list[tuple[str, bytes]] = []
    """(scope, key) recorded as seen. One that is there already, or here twice, refuses the transaction."""
    messages: list[PublishedMessage] = msgspec.field(default_factory=list, name="intents")
    """Messages of the outbox, in the order in which each target is to get them. On disks they are `intents`."""
    shards: list[ShardChange] = []
    positions: dict[str, bytes] = {}
    """How far each of these sources has come: what `Store.positions` gives of the pipeline that owns the claim."""
    histories: dict[str, bytes] = msgspec.field(default_factory=dict, name="trails")
    """The encoded PositionHistory of these sources: what `Store.position_history` gives. On disks it is `trails`."""

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "Changes":
        return _DECODER.decode(encoded)


class ClaimState(msgspec.Struct, frozen=True):
    """What is durable of a claim: the newest fence, and the last transaction of its owner."""

    fence: int
    committed: int = 0
    checkpoint: bytes | None = None


class Claim:
    """Valid until the same owner is claimed again: from then on every commit here raises Fenced.

    `fence` grows with every claim of the owner, across restarts. `committed` is the number of the last
    transaction, 0 before the first, and `checkpoint` what it recorded.
    """

    def __init__(self, owner: str, claimed: ClaimState, access: "TableAccess") -> None:
        self.owner = owner
        self.fence = claimed.fence
        self.committed = claimed.committed
        self.checkpoint = claimed.checkpoint
        self._access = access

    async def get(self, key: bytes) -> bytes | None:
        """The durable state of this owner under `key`."""
        return await self._access.look(lambda tables: tables.get(self.owner, key))

    async def scan(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """The durable state of this owner under every key that begins with `prefix`, sorted by key."""
        return await self._access.look(lambda tables: tables.scan(self.owner, prefix))

    async def measure(self, prefixes: Sequence[bytes]) -> list[tuple[int, int]]:
        """For each prefix, how many keys of that state begin with it, and the bytes of those keys and their values."""
        return await self._access.look(lambda tables: tables.measure(self.owner, prefixes))

    async def seen(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        """Which of the keys are durably recorded in the scope, by this owner or another."""
        return await self._access.look(lambda tables: tables.known(scope, keys))

    async def commit(self, changes: Changes) -> None:
        """Make the changes durable, all of them or, when it raises, none.

        Raises Fenced when a newer claim exists, and Repeated when a key of `once` is recorded already. Raises
        StaleToken when a shard went to another owner, and OutOfStep when the number is not the next one.
        Committing the last transaction again changes nothing. So a commit that another database carried can be
        adopted, even if it was adopted before.
        """
        await self._access.transact(lambda tables: tables.commit(self.owner, self.fence, changes))
        self.committed = changes.number
        self.checkpoint = changes.checkpoint


class ClaimedValues:
    """The durable state of an owner whose keys begin with a name, for the thread of a processor.

    Names of keys are text, without that name. A call waits for the store, unless `waits` is False.
    """

    def __init__(self, store: "Store", owner: str, name: str) -> None:
        """Call this in trio."""
        self._store = store
        self._owner = owner
        self._prefix = f"{name}\0"
        self._token = trio.lowlevel.current_trio_token()
        self._failure: Exception | None = None
        self.waits = store.waits

    @property
    def prefix(self) -> bytes:
        return self._prefix.encode()

    async def load(self) -> dict[str, bytes]:
        """Return all values by name. Call this in trio."""
        return dict(self._named(await self._store.look(lambda tables: tables.scan(self._owner, self.prefix))))

    def read(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        wanted = [f"{self._prefix}{key}".encode() for key in keys]
        return self._named(self._look(lambda tables: tables.get_all(self._owner, wanted)))

    async def read_async(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        """As `read`, for a task of trio."""
        wanted = [f"{self._prefix}{key}".encode() for key in keys]
        return self._named(await self._store.look(lambda tables: tables.get_all(self._owner, wanted)))

    def page(self, prefix: str, start: str, limit: int) -> list[tuple[str, bytes]]:
        first, begin = f"{self._prefix}{prefix}".encode(), f"{self._prefix}{start}".encode()
        return self._named(self._look(lambda tables: tables.page(self._owner, first, begin, limit)))

    def check(self) -> None:
        """Raise the error of an earlier call, if there was one: the processor may have caught it."""
        if self._failure is not None:
            raise self._failure

    def _named(self, rows: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, bytes]]:
        return [(key.decode()[len(self._prefix) :], value) for key, value in rows]

    def _look(self, work: "Callable[[Tables], T]") -> T:
        if not self.waits:
            return self._store.look_at_once(work)
        try:
            return trio.from_thread.run(self._store.look, work, trio_token=self._token)
        except Exception as error:
            self._failure = error
            raise


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Changes)


class OutOfStep(FatalError):
    """A transaction's number does not follow the last one: two databases of a pipeline do not fit together."""

    code = "claim.out_of_step"

    def __init__(self, owner: str, number: int, committed: int) -> None:
        super().__init__(
            f"transaction {number} of {owner!r} cannot be committed: the last one was {committed}",
            suggestion="if a database was put back from a copy, put back the state of the same moment",
        )
        self.owner = owner
        self.number = number
        self.committed = committed
