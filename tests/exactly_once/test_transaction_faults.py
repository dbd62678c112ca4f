"""The transaction vectors GZ-T9 and T11 to T14 of reference B.5 on real journals: failures, fail-over and restarts."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import journal
from conduit_connectors.journal.position import JournalPosition
from trio.testing import MockClock

from conduit_py import Record, processor, sdk
from conduit_py.backoff import Recovery
from conduit_py.batch import Batch
from conduit_py.exactly_once.participants import TransactionCheckpoint
from conduit_py.journal import sequencer
from conduit_py.journal.frame import HEADER_SIZE, SUFFIX
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.claim import Changes, ClaimState
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.testing import run_to_end
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage
from tests.exactly_once.upstream import (
    LOOK,
    Upstream,
    VirtualDestination,
    VirtualSource,
    offset,
    pipeline,
    position,
    read_committed,
    running,
)


def visible_in(path: Path) -> list[int]:
    """What a reader of what is committed sees in a journal."""
    source = journal.Source(path=path)
    source.open(None)
    try:
        found = source.read(1000)
        assert isinstance(found, list)
        return [record.payload["n"] for record in found]
    except sdk.NothingYet:
        return []
    finally:
        source.teardown()


async def test_gz_t9_recovered_acks_are_written_again_once_more_is_harmless_and_strangers_are_let_go(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    upstream, store, output = Upstream(tmp_path / "in"), MemoryStore(), tmp_path / "out"
    claim = await store.claim("p")
    died = journal.Destination(path=output)
    died.open()
    died.begin("p", claim.fence, [])
    died.write(_batch(0, 1))
    intent = died.stage()
    assert intent is not None
    await claim.commit(Changes(1, TransactionCheckpoint(intents={"d0": intent, "gone": b"intent"}).encode()))
    died.write(_batch(2))
    died.teardown()
    assert visible_in(output) == []

    seen = []
    for _ in range(3):
        async with running(pipeline(VirtualSource(path=upstream.path), VirtualDestination(path=output)), store):
            seen.append(visible_in(output))
    upstream.provisional(7)
    upstream.acknowledge()
    async with running(pipeline(VirtualSource(path=upstream.path), VirtualDestination(path=output)), store):
        seen.append(visible_in(output))

    assert seen == [[0, 1], [0, 1], [0, 1], [0, 1, 7]]
    assert "p: the last records of gone stay invisible: it was removed" in caplog.text
    assert await read_committed(store) == 2


def _batch(*numbers: int) -> Batch:
    return batch_of([Record.of({"n": number}, position=b"%d" % number) for number in numbers])


class FragileVault(FakeStorage):
    """A storage whose destination fails for good in the call named here."""

    failing: str | None = None
    torn_down = 0


class FragileDestination(FakeStagedDestination):
    """Fails where its storage says so."""

    def _reached(self, call: str) -> None:
        assert isinstance(self.storage, FragileVault)
        if call == self.storage.failing:
            raise sdk.FatalError(f"the storage fails to {call}")

    async def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        self._reached("begin")
        await super().begin(owner, fence, intents)

    async def write(self, batch: Batch) -> Any:
        self._reached("write")
        return await super().write(batch)

    async def stage(self) -> bytes | None:
        self._reached("stage")
        return await super().stage()

    async def apply(self, intent: bytes) -> None:
        self._reached("apply")
        await super().apply(intent)

    async def teardown(self) -> None:
        assert isinstance(self.storage, FragileVault)
        await trio.lowlevel.checkpoint()
        self.storage.torn_down += 1


class TestGzT11:
    @pytest.mark.parametrize(("failing", "kept"), [("begin", 0), ("write", 0), ("stage", 0), ("apply", 1)])
    async def test_gz_t11_an_error_at_any_step_ends_the_run_by_name_and_the_next_makes_up_for_it(
        self, tmp_path: Path, autojump_clock: MockClock, failing: str, kept: int
    ) -> None:
        """Ours is torn down also when it could not begin: what `open` took is given back in any case."""
        upstream, storage, store = Upstream(tmp_path), FragileVault(), MemoryStore()
        upstream.provisional(0)
        upstream.acknowledge()
        declared = pipeline(VirtualSource(path=tmp_path, until="end"), FragileDestination(storage=storage))
        storage.failing = failing
        outcome = await run_to_end(declared, store)

        assert outcome.error is not None
        assert (outcome.status, outcome.error.node) == (Status.DEGRADED, "d0")
        assert f"the storage fails to {failing}" in outcome.error.message
        assert (storage.visible, await read_committed(store), storage.torn_down) == ([], kept, 1)

        storage.failing = None
        outcome = await run_to_end(declared, store)

        assert (outcome.status, outcome.progress.read) == (Status.COMPLETED, 1 - kept)
        assert (storage.visible, await read_committed(store), storage.torn_down) == ([0], 1, 2)

    async def test_gz_t11_an_error_of_a_processor_ends_the_run_by_name_and_nothing_of_its_transaction_stays(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FragileVault(), MemoryStore()

        @processor
        def consume(record: Record) -> Record:
            raise sdk.FatalError("it cannot be consumed")

        upstream.provisional(0)
        upstream.acknowledge()
        source = VirtualSource(path=tmp_path, until="end")
        outcome = await run_to_end(pipeline(source, FragileDestination(storage=storage), processors=[consume]), store)

        assert outcome.error is not None
        assert (outcome.status, outcome.error.node) == (Status.DEGRADED, "consume")
        assert "it cannot be consumed" in outcome.error.message
        assert (storage.visible, await read_committed(store), storage.torn_down) == ([], 0, 1)
        assert outcome.positions == {}


@asynccontextmanager
async def in_memory(_: Path) -> AsyncIterator[Store]:
    yield MemoryStore()


@asynccontextmanager
async def in_sqlite(path: Path) -> AsyncIterator[Store]:
    async with await SqliteStore.open(path / "state") as store:
        yield store


@pytest.mark.parametrize("opened", [in_memory, in_sqlite])
async def test_gz_t12_a_transaction_that_is_half_written_upstream_during_a_fail_over_is_committed_once(
    tmp_path: Path, opened: Callable[[Path], AbstractAsyncContextManager[Store]]
) -> None:
    upstream, other, storage = Upstream(tmp_path / "in"), Upstream(tmp_path / "in"), FakeStorage()
    declared = pipeline(journal.Source(path=upstream.path), FakeStagedDestination(storage=storage))
    with trio.fail_after(300):
        async with opened(tmp_path) as store, trio.open_nursery() as nursery:
            other.provisional(1, 2)
            upstream.provisional(0)
            upstream.acknowledge()
            first = Supervisor(declared, store)
            nursery.start_soon(first.run)
            await _wait_until_shown(storage, 1)
            first.force()
            begun = [each.begin for each in (await position(store)).checkpoint.producers]
            second = Supervisor(declared, store)
            nursery.start_soon(second.run)
            other.provisional(3)
            other.acknowledge()
            await _wait_until_shown(storage, 4)
            second.stop()

    # What the other has begun is part of the checkpoint with which the second goes on.
    assert sorted(begun)[0] == sequencer.NONE < sorted(begun)[1]
    assert storage.history == [1, 4]
    assert storage.visible == [0, 1, 2, 3]


async def _wait_until_shown(storage: FakeStorage, count: int) -> None:
    while len(storage.visible) < count:  # noqa: ASYNC110
        await trio.sleep(0.01)


async def test_gz_t13_a_start_goes_on_behind_the_offset_of_the_checkpoint_or_one_that_was_set(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
    declared = pipeline(VirtualSource(path=tmp_path, until="end"), FakeStagedDestination(storage=storage))
    upstream.provisional(0, 1)
    first = upstream.acknowledge()
    outcome = await run_to_end(declared, store)
    assert (outcome.progress.read, await offset(store)) == (2, first)
    upstream.provisional(2, 3)
    second = upstream.acknowledge()
    upstream.provisional(4)
    third = upstream.acknowledge()
    id = JournalPosition.decode(outcome.positions["s"]).id
    await store.save_positions("p", {"s": JournalPosition(id, sequencer.Checkpoint(second)).encode()})
    outcome = await run_to_end(declared, store)

    assert (outcome.status, outcome.progress.read) == (Status.COMPLETED, 1)
    assert (storage.visible, await offset(store)) == ([0, 1, 4], third)
    assert (await run_to_end(declared, store)).progress.read == 0


def _damage(path: Path, at: int) -> None:
    """Flip a bit in the only segment of a journal."""
    (segment,) = path.glob(f"*{SUFFIX}")
    damaged = bytearray(segment.read_bytes())
    damaged[at] ^= 1
    segment.write_bytes(damaged)


class TestGzT14:
    async def test_gz_t14_a_journal_that_is_not_there(self, tmp_path: Path, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        declared = pipeline(VirtualSource(path=tmp_path / "none", until="end"), FakeStagedDestination(storage=storage))
        outcome = await run_to_end(declared, store)

        assert outcome.error is not None
        assert (outcome.status, outcome.error.node) == (Status.DEGRADED, "s")
        assert f"there is no journal in {tmp_path / 'none'}" in outcome.error.message

    async def test_gz_t14_a_frame_that_is_damaged(self, tmp_path: Path, autojump_clock: MockClock) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        upstream.provisional(0)
        end = upstream.acknowledge()
        await run_to_end(
            pipeline(VirtualSource(path=tmp_path, until="end"), FakeStagedDestination(storage=storage)), store
        )
        for number in (1, 2):
            upstream.provisional(number)
            upstream.acknowledge()
        _damage(tmp_path, end + HEADER_SIZE)
        declared = pipeline(VirtualSource(path=tmp_path), FakeStagedDestination(storage=storage))
        state = await Supervisor(declared, store, recovery=Recovery(retries=0)).run()

        assert state.error is not None
        assert (state.status, state.error.node) == (Status.DEGRADED, "s")
        assert f"a frame whose checksum does not fit at offsets {end} to " in state.error.message
        assert (storage.visible, await offset(store)) == ([0], end)

    async def test_gz_t14_a_store_that_fails(self, tmp_path: Path, autojump_clock: MockClock) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        declared = pipeline(VirtualSource(path=tmp_path), FakeStagedDestination(storage=storage))
        supervisor = Supervisor(declared, store, recovery=Recovery(retries=0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(LOOK)
            store.fail_after = store.writes
            upstream.provisional(0)
            upstream.acknowledge()
        store.fail_after = None

        assert supervisor.state.error is not None
        assert supervisor.state.status is Status.DEGRADED
        assert "memory store fails after" in supervisor.state.error.message
        assert await store.claim_state("p") == ClaimState(1)
        assert storage.visible == []
