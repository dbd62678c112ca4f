"""The transaction vectors GZ-T2 to T4, T6 and T7 of reference B.5 on journals: what opens and splits a transaction.

Those of failures and restarts are in test_transaction_faults.py; on vaults GZ-T1 and T5 in test_transaction_loop.py.
docs/explanation/vectors.md has where each vector is, and which of them we have no use for.
"""

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from conduit_py import TransactionLimits, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage
from tests.exactly_once.upstream import LOOK, Upstream, VirtualSource, offset, pipeline, read_committed, running


class SlowSource(VirtualSource):
    """Needs 2 s for each read."""

    async def read(self, n: int) -> Any:  # type: ignore[override]
        await trio.sleep(2)
        return super().read(n)


class SlowVault(FakeStagedDestination):
    """Takes 2 s to stage."""

    async def stage(self) -> bytes | None:
        await trio.sleep(2)
        return await super().stage()


class TestGzT4:
    async def test_gz_t4_what_is_not_acknowledged_opens_no_transaction_and_its_ack_opens_one_of_all(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        async with running(
            pipeline(VirtualSource(path=tmp_path), FakeStagedDestination(storage=storage)), store
        ) as supervisor:
            for number in range(3):
                upstream.provisional(number)
                await trio.sleep(LOOK)
            assert (await read_committed(store), supervisor.progress().read, storage.history) == (0, 0, [])
            upstream.acknowledge()
            await trio.sleep(LOOK)

            assert (await read_committed(store), storage.history) == (1, [3])
        assert storage.visible == [0, 1, 2]

    async def test_gz_t4_what_is_acknowledged_before_the_minimum_joins_and_an_open_span_holds_up_nothing(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        """Theirs waits for the ACK of a span that was begun; ours does not see it before, so the next has it."""
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        limits = TransactionLimits(min_seconds=10, max_seconds=20)
        declared = pipeline(VirtualSource(path=tmp_path), FakeStagedDestination(storage=storage), transaction=limits)
        async with running(declared, store):
            upstream.provisional(0, 1, 2)
            upstream.acknowledge()
            await trio.sleep(LOOK)
            upstream.provisional(3)
            await trio.sleep(LOOK)
            upstream.provisional(4)
            upstream.acknowledge()
            await trio.sleep(LOOK)
            upstream.provisional(5)
            await trio.sleep(10)
            assert storage.history == [5]
            upstream.acknowledge()
            await trio.sleep(LOOK)

        assert storage.history == [5, 6]
        assert storage.visible == list(range(6))


class TestGzT6:
    async def test_gz_t6_repetitions_alone_open_no_transaction_and_are_no_lag(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        written = upstream.provisional(0, 1)
        end = upstream.acknowledge()
        declared = pipeline(VirtualSource(path=tmp_path), FakeStagedDestination(storage=storage))
        async with running(declared, store) as supervisor:
            assert (await read_committed(store), await offset(store)) == (1, end)
            for _ in range(3):
                upstream.again(written)
            await trio.sleep(5 + LOOK)
            (source,) = (meter for meter in supervisor.progress().nodes if meter.kind == "source")

            assert source.lag == sdk.Lag(bytes=0)
            assert (await read_committed(store), supervisor.progress().read) == (1, 2)
        assert storage.history == [2]

    async def test_gz_t6_what_follows_repetitions_takes_the_position_past_them_also_while_another_commits(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        written = upstream.provisional(0, 1)
        first = upstream.acknowledge()
        async with running(pipeline(VirtualSource(path=tmp_path), SlowVault(storage=storage)), store):
            # The first transaction is being staged until 2.
            upstream.again(written)
            upstream.provisional(2)
            last = upstream.acknowledge()
            await trio.sleep(2)
            assert (storage.history, await offset(store)) == ([2], first)
            await trio.sleep(2)

            assert (storage.history, await offset(store)) == ([2, 3], last)
        again = await run_to_end(
            pipeline(VirtualSource(path=tmp_path, until="end"), FakeStagedDestination(storage=storage)), store
        )

        assert (again.status, again.progress.read) == (Status.COMPLETED, 0)
        assert storage.visible == [0, 1, 2]


class TestGzT7:
    async def test_gz_t7_the_maximum_inside_of_a_run_splits_it_and_the_next_transaction_comes_to_its_ack(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        upstream.provisional(1)
        upstream.provisional(2)
        end = upstream.acknowledge()
        limits = TransactionLimits(min_seconds=1, max_seconds=1)
        declared = pipeline(
            SlowSource(path=tmp_path), FakeStagedDestination(storage=storage), batch_size=1, transaction=limits
        )  # fmt: skip
        async with running(declared, store):
            # Read at 2 and at 4; a transaction lasts a second.
            await trio.sleep_until(3.5)
            assert (storage.visible, await read_committed(store)) == ([1], 1)
            assert await offset(store) < end
            await trio.sleep_until(5.5)

            assert (storage.visible, await read_committed(store)) == ([1, 2], 2)
            assert await offset(store) == end

    async def test_gz_t7_a_run_that_was_split_goes_on_after_a_crash_with_what_was_not_committed(
        self, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
        upstream.provisional(1, 2, 3)
        end = upstream.acknowledge()
        one = TransactionLimits(max_records=1)
        declared = pipeline(
            SlowSource(path=tmp_path), FakeStagedDestination(storage=storage), batch_size=1, transaction=one
        )
        supervisor = Supervisor(declared, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(3)
            supervisor.force()
        assert storage.visible == [1]
        assert await offset(store) < end
        outcome = await run_to_end(
            pipeline(VirtualSource(path=tmp_path, until="end"), FakeStagedDestination(storage=storage)), store
        )

        assert (outcome.status, outcome.progress.read) == (Status.COMPLETED, 2)
        assert storage.visible == [1, 2, 3]
        assert await offset(store) == end


async def test_gz_t2_past_its_minimum_a_transaction_still_waits_for_the_one_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
    limits = TransactionLimits(min_seconds=0.5, max_seconds=10)
    seen: list[tuple[float, list[int]]] = []
    async with running(pipeline(VirtualSource(path=tmp_path), SlowVault(storage=storage), transaction=limits), store):
        upstream.provisional(0)
        upstream.acknowledge()
        # The first is open from 0.63 to 1.13 and being staged until 3.13, the second is past its minimum before 2.4.
        await trio.sleep_until(1.3)
        upstream.provisional(1)
        upstream.acknowledge()
        for moment in (3.1, 3.2, 5.2, 5.3):
            await trio.sleep_until(moment)
            seen.append((moment, list(storage.history)))

    # Commits are kept 0.1 apart, so it is being staged from 3.23 on.
    assert seen == [(3.1, []), (3.2, [1]), (5.2, [1]), (5.3, [1, 2])]


async def test_gz_t3_the_maximum_while_the_one_before_commits_leaves_the_rest_to_the_next(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    upstream, storage, store = Upstream(tmp_path), FakeStorage(), MemoryStore()
    limits = TransactionLimits(max_seconds=1)
    async with running(pipeline(VirtualSource(path=tmp_path), SlowVault(storage=storage), transaction=limits), store):
        for number in (0, 1, 2):
            upstream.provisional(number)
            upstream.acknowledge()
            await trio.sleep(LOOK)
        # The first is being staged until 2.63. The second was opened at 1.26, so since 2.26 it takes no more.
        await trio.sleep_until(2.4)
        upstream.provisional(3)
        upstream.acknowledge()
        await trio.sleep_until(12)

    assert storage.history == [1, 3, 4]
    assert storage.visible == [0, 1, 2, 3]
