"""The transaction loop on virtual time: when it commits, what it commits, and how it ends."""

import re
from typing import Annotated, Any, ClassVar

import pytest
import trio
from conduit_connectors import memory
from pydantic import Field, InstanceOf
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, State, TransactionLimits, processor, sdk
from conduit_py.backoff import Recovery
from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import RecordRefused
from conduit_py.exactly_once.participants import TransactionCheckpoint, decode_letters, encode_letters
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.claim import Changes
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)


def numbers(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, first + count)]


def pipeline(source: sdk.SourceConnector[Any], *connectors: sdk.DestinationConnector[Any], **more: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", source)],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(connectors)],
        delivery="exactly_once",
        **more,
    )


class ClockedOptions(sdk.Options):
    """When each number comes, in seconds."""

    at: Annotated[InstanceOf[list[float]], Field(description="one time for each record")]
    endless: bool = False


class Clocked(sdk.SourceConnector[ClockedOptions]):
    """Numbers that come at set times."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._next = 0 if position is None else int(position) + 1

    async def read(self, n: int) -> list[Record]:
        if self._next == len(self.options.at):
            if self.options.endless:
                await trio.sleep_forever()
            raise sdk.EndOfSource
        await trio.sleep_until(self.options.at[self._next])
        self._next += 1
        return [Record.of({"n": self._next - 1}, position=b"%d" % (self._next - 1))]


class SlowVault(FakeStagedDestination):
    """Takes 2 s to stage."""

    async def stage(self) -> bytes | None:
        await trio.sleep(2)
        return await super().stage()


class TestWhenItCommits:
    async def test_gz_t1_a_stall_after_the_minimum_commits(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        limits = TransactionLimits(min_seconds=1, max_seconds=10)
        await run_to_end(
            pipeline(Clocked(at=[0, 0.3, 0.9, 5]), FakeStagedDestination(storage=storage), transaction=limits)
        )

        assert storage.history == [3, 4]

    async def test_a_lone_record_is_committed_at_once(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        supervisor = Supervisor(
            pipeline(Clocked(at=[0.0], endless=True), FakeStagedDestination(storage=storage)), MemoryStore()
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(0.001)
            assert storage.visible == [0]
            supervisor.stop()

    async def test_gz_t2_t3_a_full_transaction_waits_for_the_one_before(self, autojump_clock: MockClock) -> None:
        """While the first is being staged the second is read, up to its limits, and not written."""
        storage = FakeStorage()
        limits = TransactionLimits(max_seconds=1, max_records=100)
        times = [0.0, *(0.5 + n / 10 for n in range(12)), 3.0]
        await run_to_end(pipeline(Clocked(at=times), SlowVault(storage=storage), transaction=limits))

        # The second begins at 0.5 and is not staged before the first is committed at 2: it has what came meanwhile.
        assert storage.history[0] == 1
        assert storage.history[1] >= 4
        assert storage.visible == list(range(14))

    async def test_gz_t5_the_end_of_the_input_commits_what_there_is(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        limits = TransactionLimits(min_seconds=50, max_seconds=100)
        await run_to_end(pipeline(Clocked(at=[0, 1]), FakeStagedDestination(storage=storage), transaction=limits))

        assert storage.history == [2]
        assert trio.current_time() == 1

    async def test_no_more_than_so_many_records(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        source = memory.Source(records=numbers(10))
        await run_to_end(
            pipeline(source, FakeStagedDestination(storage=storage), transaction=TransactionLimits(max_records=4))
        )

        assert max(b - a for a, b in zip([0, *storage.history], storage.history, strict=False)) <= 4

    async def test_no_more_than_about_so_many_bytes(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        records = [{"n": n, "text": "x" * 1000} for n in range(10)]
        source = Source("s", memory.Source(records=records), batch_size=1)
        limits = TransactionLimits(max_bytes=3000, min_seconds=0.5)
        await run_to_end(
            Pipeline("p", sources=[source], destinations=[Destination("d", FakeStagedDestination(storage=storage))],
                     delivery="exactly_once", transaction=limits)
        )  # fmt: skip

        assert storage.history == [2, 4, 6, 8, 10]

    async def test_a_small_window_makes_small_transactions_and_no_pauses(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        source = Source("s", memory.Source(records=numbers(1000)), window=10)
        await run_to_end(
            Pipeline(
                "p",
                sources=[source],
                destinations=[Destination("d", FakeStagedDestination(storage=storage))],
                delivery="exactly_once",
            )
        )

        assert storage.visible == list(range(1000))
        assert trio.current_time() < 0.1

    async def test_gz_t13_a_second_run_goes_on_after_the_first(self, autojump_clock: MockClock) -> None:
        storage, store, items = FakeStorage(), MemoryStore(), numbers(3)
        await run_to_end(pipeline(memory.Source(records=items), FakeStagedDestination(storage=storage)), store)
        items += numbers(2, first=3)
        await run_to_end(pipeline(memory.Source(records=items), FakeStagedDestination(storage=storage)), store)

        assert storage.visible == [0, 1, 2, 3, 4]

    async def test_from_at_least_once_it_goes_on_too(self, autojump_clock: MockClock) -> None:
        storage, store, items = FakeStorage(), MemoryStore(), numbers(3)
        before = pipeline(memory.Source(records=items), memory.Destination(into=[]))
        before = Pipeline("p", sources=before.sources, destinations=before.destinations)
        await run_to_end(before, store)
        items += numbers(2, first=3)
        await run_to_end(pipeline(memory.Source(records=items), FakeStagedDestination(storage=storage)), store)

        assert storage.visible == [3, 4]


class Watched(FakeStagedDestination):
    """Notes the order in which it is called, and is slow to stage and to apply."""

    calls: ClassVar[list[str]] = []

    async def write(self, batch: Any) -> Any:
        self.calls.append("write")
        return await super().write(batch)

    async def stage(self) -> bytes | None:
        await trio.sleep(1)
        self.calls.append("stage")
        return await super().stage()

    async def apply(self, intent: bytes) -> None:
        await trio.sleep(1)
        self.calls.append("apply")
        await super().apply(intent)


async def test_i5_nothing_of_the_next_transaction_is_written_before_the_last_is_shown(
    autojump_clock: MockClock,
) -> None:
    storage, limits = FakeStorage(), TransactionLimits(max_records=3)
    await run_to_end(pipeline(Clocked(at=[n / 4 for n in range(30)]), Watched(storage=storage), transaction=limits))
    calls = "".join(call[0] for call in Watched.calls)

    assert re.fullmatch("(w+sa)+", calls)
    assert calls.count("s") > 5
    assert storage.visible == list(range(30))


class TestHowItEnds:
    async def test_a_graceful_stop_commits_the_open_transaction(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        limits = TransactionLimits(min_seconds=60, max_seconds=100)
        source = Clocked(at=[0.0, 1.0], endless=True)
        supervisor = Supervisor(
            pipeline(source, FakeStagedDestination(storage=storage), transaction=limits), MemoryStore()
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(2)
            assert storage.visible == []
            supervisor.stop()

        assert storage.visible == [0, 1]
        assert supervisor.state.status is Status.STOPPED

    async def test_a_forceful_stop_leaves_nothing_to_clean_up(self, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        limits = TransactionLimits(min_seconds=60, max_seconds=100)
        source = Clocked(at=[0.0, 1.0], endless=True)
        supervisor = Supervisor(pipeline(source, FakeStagedDestination(storage=storage), transaction=limits), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(2)
            supervisor.force()
        await run_to_end(pipeline(Clocked(at=[0.0, 1.0]), FakeStagedDestination(storage=storage)), store)

        assert storage.visible == [0, 1]

    async def test_i7_a_newer_run_ends_this_one_for_good(self, autojump_clock: MockClock) -> None:
        storage, store = FakeStorage(), MemoryStore()
        source = Clocked(at=[0.0, 10.0], endless=True)
        recovery = Recovery(delay_seconds=1)
        supervisor = Supervisor(pipeline(source, FakeStagedDestination(storage=storage)), store, recovery=recovery)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(5)
            await store.claim("p")

        assert supervisor.state.status is Status.DEGRADED
        error = supervisor.state.error
        assert error is not None
        assert error.code == "run.fenced"
        assert "another process runs pipeline 'p'" in error.message
        assert storage.visible == [0]


class TestHome:
    async def test_gz_t9_intents_for_a_destination_that_is_gone_are_let_go(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, storage = MemoryStore(), FakeStorage()
        claim = await store.claim("p")
        await claim.commit(Changes(1, TransactionCheckpoint(intents={"gone": b"intent"}).encode()))
        outcome = await run_to_end(
            pipeline(memory.Source(records=numbers(2)), FakeStagedDestination(storage=storage)), store
        )

        assert outcome.status is Status.COMPLETED
        assert "gone" in caplog.text
        assert storage.visible == [0, 1]

    async def test_the_store_follows_a_home_that_is_one_ahead(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        home.changes = Changes(1, TransactionCheckpoint("d0").encode(), positions={"s": b"memory:1:2"}).encode()
        home.visible = [0, 1, 2]
        await run_to_end(pipeline(memory.Source(records=numbers(5)), FakeTransactionalDestination(storage=home)), store)

        assert home.visible == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("number", [2, 7])
    async def test_a_home_further_ahead_is_of_another_history(self, autojump_clock: MockClock, number: int) -> None:
        home = FakeStorage()
        home.changes = Changes(number, b"").encode()
        outcome = await run_to_end(
            pipeline(memory.Source(records=numbers(5)), FakeTransactionalDestination(storage=home))
        )

        assert outcome.error is not None
        assert f"transaction {number}" in outcome.error.message
        assert "do not belong together" in outcome.error.message
        assert home.visible == []

    async def test_a_home_that_was_set_back_is_not_believed(self, autojump_clock: MockClock) -> None:
        store, home = MemoryStore(), FakeStorage()
        await run_to_end(pipeline(memory.Source(records=numbers(5)), FakeTransactionalDestination(storage=home)), store)
        home.changes, home.visible = None, []
        outcome = await run_to_end(
            pipeline(memory.Source(records=numbers(9)), FakeTransactionalDestination(storage=home)), store
        )

        assert outcome.status is Status.DEGRADED
        assert home.visible == []

    async def test_the_order_of_destinations_may_change(self, autojump_clock: MockClock) -> None:
        store, one, two, items = MemoryStore(), FakeStorage(), FakeStorage(), numbers(3)
        destinations = [
            Destination("one", FakeTransactionalDestination(storage=one)),
            Destination("two", FakeTransactionalDestination(storage=two)),
        ]
        for _ in range(2):
            await run_to_end(
                Pipeline("p", sources=[Source("s", memory.Source(records=items))], destinations=destinations,
                         delivery="exactly_once"), store
            )  # fmt: skip
            destinations.reverse()
            items += numbers(3, first=3)

        assert one.visible == two.visible == list(range(6))


@processor(state=True)
def counted(record: Record, state: State) -> Record:
    state.put("count", state.get("count", 0) + 1)
    if record.payload["n"] == 2:
        raise RecordRefused("two is refused")
    record.payload["count"] = state.get("count")
    return record


class TestState:
    async def test_i6_state_goes_on_where_it_was_and_a_refused_record_leaves_no_trace(
        self, autojump_clock: MockClock
    ) -> None:
        store, storage, items = MemoryStore(), FakeStorage(), numbers(4)
        for _ in range(2):
            outcome = await run_to_end(
                pipeline(
                    memory.Source(records=items), FakeStagedDestination(storage=storage), processors=[counted],
                    dead_letters=DeadLetters("drop"),
                ),
                store,
            )  # fmt: skip
            assert outcome.status is Status.COMPLETED, outcome.error
            items += numbers(3, first=4)
        state = dict(await (await store.claim("p")).scan())

        assert storage.visible == [0, 1, 3, 4, 5, 6]
        assert state == {b"counted\0count": b"\x06"}

    def test_a_state_by_itself_is_enough_to_test_a_processor(self) -> None:
        state = State()
        state.put("a.1", {"x": [1]})
        state.put("a.2", 2)
        state.put("b", 3)
        state.delete("a.2")

        assert state.get("a.1") == {"x": [1]}
        assert state.get("a.2", "none") == "none"
        assert list(state.scan("a.")) == [("a.1", {"x": [1]})]
        with pytest.raises(RecordRefused, match="'other' cannot be stored"):
            state.put("other", object())

    async def test_a_value_that_is_changed_after_it_was_put_is_not(self) -> None:
        state, value = State(), [1]
        state.put("k", value)
        value.append(2)
        state.get("k").append(3)

        assert state.get("k") == [1]
        assert await state.once("scope", [b"a", b"a", b"b"]) == [True, False, True]


class TestDeadLetters:
    async def test_i11_a_letter_and_no_output(self, autojump_clock: MockClock) -> None:
        storage, letters = FakeStorage(), FakeStorage()
        outcome = await run_to_end(
            pipeline(
                memory.Source(records=numbers(5)), FakeKeyedDestination(storage=storage, refuses={3}),
                dead_letters=DeadLetters(Letters(storage=letters)),
            )
        )  # fmt: skip

        assert outcome.status is Status.COMPLETED, outcome.error
        assert sorted(storage.by_key.values()) == [0, 1, 2, 4]
        assert letters.visible == [3]

    def test_letters_come_out_of_a_checkpoint_as_they_went_in(self) -> None:
        record = Record.of({"big": 2**80, "raw": b"\0"}, key={"id": 1}, position=b"7")
        letter = DeadLetter(
            "p", MessageId("s", 4, (0, 1)), b"7", record, [Failure("d", "no")], 3.5, {"e": record.copy()}
        )

        assert decode_letters(encode_letters([letter])) == [letter]


class Letters(FakeStagedDestination):
    """Keeps the numbers of refused records."""

    def partition(self, batch: Any) -> tuple[dict[int, int], dict[int, str]]:
        return {index: int(record.payload["record"]["payload"]["after"]["n"]) for index, record in enumerate(batch)}, {}


class TestIsolation:
    @pytest.mark.parametrize("poison", [0, 5, 9])
    async def test_everything_before_a_poison_record_is_committed_and_the_error_names_it(
        self, autojump_clock: MockClock, poison: int
    ) -> None:
        storage = FakeStorage()
        source = memory.Source(records=numbers(10))
        outcome = await run_to_end(pipeline(source, FakeStagedDestination(storage=storage, breaks={poison})))

        assert outcome.status is Status.DEGRADED
        assert storage.visible == list(range(poison))
        assert outcome.error is not None
        assert f"the storage breaks at {poison}" in outcome.error.message
        assert f"'memory:1:{poison}'" in str(outcome.error.suggestion)

    async def test_a_commit_that_is_under_way_is_not_lost_to_the_record_after_it(
        self, autojump_clock: MockClock
    ) -> None:
        storage = FakeStorage()

        @processor
        def fatal(record: Record) -> Record:
            if record.payload["n"] == 7:
                raise sdk.FatalError("seven ends it")
            return record

        source = memory.Source(records=numbers(10))
        outcome = await run_to_end(pipeline(source, SlowVault(storage=storage), processors=[fatal]))

        assert outcome.status is Status.DEGRADED
        assert storage.visible == [0, 1, 2, 3, 4, 5, 6]

    async def test_a_large_transaction_is_searched_in_few_steps(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        source = Source("s", memory.Source(records=numbers(2000)), batch_size=2000)
        outcome = await run_to_end(
            Pipeline(
                "p",
                sources=[source],
                destinations=[Destination("d", FakeStagedDestination(storage=storage, breaks={1234}))],
                delivery="exactly_once",
            )
        )

        assert outcome.progress.recoveries <= 4
        assert storage.visible == list(range(1234))
        assert len(storage.history) < 60

    async def test_a_refused_record_stops_the_pipeline_with_all_before_it_committed(
        self, autojump_clock: MockClock
    ) -> None:
        storage = FakeStorage()
        source = memory.Source(records=numbers(10))
        outcome = await run_to_end(pipeline(source, FakeStagedDestination(storage=storage, refuses={6})))

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert outcome.error.code == "dead_letter.not_allowed"
        assert "'memory:1:6'" in str(outcome.error.suggestion)
        assert storage.visible == [0, 1, 2, 3, 4, 5]

    async def test_past_the_poison_transactions_are_large_again(self, autojump_clock: MockClock) -> None:
        storage, broken, store = FakeStorage(), {5}, MemoryStore()
        source = memory.Source(records=numbers(1000))
        supervisor = Supervisor(
            pipeline(source, FakeStagedDestination(storage=storage, breaks=broken)),
            store,
            recovery=Recovery(delay_seconds=1),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(0.4)
            assert storage.visible == [0, 1, 2, 3, 4]
            broken.clear()

        assert supervisor.state.status is Status.COMPLETED
        assert storage.visible == list(range(1000))
        assert len(storage.history) < 900

    async def test_too_many_refusals_are_counted_once(self, autojump_clock: MockClock) -> None:
        storage = FakeStorage()
        letters = DeadLetters("drop", window_size=10, window_nack_threshold=2)
        source = memory.Source(records=numbers(20))
        outcome = await run_to_end(
            pipeline(source, FakeStagedDestination(storage=storage, refuses={4, 5, 6}), dead_letters=letters)
        )  # fmt: skip

        assert outcome.status is Status.DEGRADED
        assert storage.visible == []
