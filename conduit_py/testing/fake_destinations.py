"""In-memory destinations, one for each level of exactly-once delivery.

Their storage outlives a run, so a test can look at it after a crash.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import trio
from pydantic import Field, InstanceOf

from conduit_py import sdk
from conduit_py.batch import Batch
from conduit_py.errors import Fenced
from conduit_py.sdk.destination import Refusals, WriteGuarantee
from conduit_py.sdk.plugin import Options
from conduit_py.testing.crash import durable


class FakeStorage:
    """What one destination holds: what readers see, and what is internal. Records are identified by their numbers."""

    def __init__(self) -> None:
        self.visible: list[int] = []
        """What a reader sees, in order."""
        self.history: list[int] = []
        """How many were visible after each change."""
        self.staged: dict[tuple[int, int], list[int]] = {}
        self.applied = (0, 0)
        self.fence = 0
        self.changes: bytes | None = None
        self.by_key: dict[bytes, int] = {}
        self.checks_fences = True

    def check(self, fence: int) -> None:
        if self.checks_fences and fence < self.fence:
            raise Fenced(f"the storage has fence {self.fence}")

    def show(self, numbers: Sequence[int]) -> None:
        self.visible += numbers
        self.history.append(len(self.visible))


class FakeDestinationOptions(Options):
    """The options of every fake destination."""

    storage: Annotated[InstanceOf[FakeStorage], Field(description="where everything is kept; survives runs")]
    refuses: Annotated[InstanceOf[set[int]], Field(description="the numbers of records that are refused")] = Field(
        default_factory=set
    )
    breaks: Annotated[InstanceOf[set[int]], Field(description="the numbers at which a write raises")] = Field(
        default_factory=set
    )


class _FakeDestination(sdk.DestinationConnector[FakeDestinationOptions]):
    """Records are numbered by the field `n` of their payload."""

    @property
    def storage(self) -> FakeStorage:
        return self.options.storage

    def partition(self, batch: Batch) -> tuple[dict[int, int], dict[int, str]]:
        """Index → number of what is taken, and index → reason of what is refused."""
        numbers = {index: int(record.payload["n"]) for index, record in enumerate(batch)}
        for number in numbers.values():
            if number in self.options.breaks:
                raise ValueError(f"the storage breaks at {number}")
        refused = {index: f"{n} is refused" for index, n in numbers.items() if n in self.options.refuses}
        return {index: n for index, n in numbers.items() if index not in refused}, refused


class FakeKeyedDestination(_FakeDestination):
    """Writes a record once under its delivery key, however often it comes."""

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.IDEMPOTENT

    async def write(self, batch: Batch) -> Refusals | None:
        taken, refused = self.partition(batch)
        async with durable("keyed.write"):
            for index, number in taken.items():
                if self.storage.by_key.setdefault(batch.delivery_key(index), number) == number:
                    continue
                raise AssertionError(f"another record had the delivery key of {number}")
        return refused


class FakeStagedDestination(_FakeDestination, sdk.StagedDestination[FakeDestinationOptions]):
    """Stages what is written and makes it visible in `apply`."""

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()
        self._pending: list[int] = []
        self._count = 0

    async def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        storage = self.storage
        async with durable("staged.begin"):
            storage.check(fence)
            self._fence = storage.fence = fence
            for intent in intents:
                self._apply(intent)
            # Only after the intents: what they name is staged here. The rest was never committed.
            storage.staged = {}

    async def write(self, batch: Batch) -> Refusals | None:
        await trio.lowlevel.checkpoint()
        taken, refused = self.partition(batch)
        self._pending += taken.values()
        return refused

    async def stage(self) -> bytes | None:
        if not self._pending:
            await trio.lowlevel.checkpoint()
            return None
        self._count += 1
        place = (self._fence, self._count)
        async with durable("staged.stage"):
            self.storage.check(self._fence)
            self.storage.staged[place] = self._pending
        self._pending = []
        return msgspec.msgpack.encode(place)

    async def apply(self, intent: bytes) -> None:
        async with durable("staged.apply"):
            self._apply(intent)

    def _apply(self, intent: bytes) -> None:
        place = msgspec.msgpack.decode(intent, type=tuple[int, int])
        # Intents are applied again after a crash: one that was applied must show nothing twice.
        if place > self.storage.applied and place in self.storage.staged:
            self.storage.applied = place
            self.storage.show(self.storage.staged.pop(place))


class FakeTransactionalDestination(FakeStagedDestination, sdk.TransactionalDestination[FakeDestinationOptions]):
    """Makes what was written visible in the same operation that stores the changes of the transaction."""

    async def claim(self, owner: str, fence: int) -> bytes | None:
        async with durable("home.claim"):
            self.storage.check(fence)
            self._fence = self.storage.fence = fence
        return self.storage.changes

    async def commit(self, changes: bytes) -> None:
        async with durable("home.commit"):
            self.storage.check(self._fence)
            self.storage.changes = changes
            self.storage.show(self._pending)
        self._pending = []
