"""Sources: how batches form from what they return, and how one that breaks its contract is stopped."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Record, Source, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import (
    Batch,
    Columns,
    EncodedPositions,
    EndOfSource,
    MapPositions,
    NothingYet,
    Payloads,
    Positions,
    Reading,
)
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Delay,
    EmptyPosition,
    EventLog,
    Idle,
    Refuse,
    RepeatPosition,
    ReturnNothing,
    ReturnTooMany,
    ScriptedDestination,
    ScriptedSource,
    ScriptStep,
    number_of,
    numbered_record,
    position_of,
    simulated,
)


class Given(sdk.SourceConnector[sdk.Options]):
    """Returns (or raises) what it was given, one after another, then ends; notes how many were asked for when."""

    def answering(self, *readings: Any) -> "Given":
        self.readings = list(readings)
        self.asked: list[tuple[float, int]] = []
        self.acked: list[bytes] = []
        return self

    async def read(self, n: int) -> list[Record] | Reading:
        await trio.lowlevel.checkpoint()
        self.asked.append((trio.current_time(), n))
        if not self.readings:
            raise EndOfSource
        reading = self.readings.pop(0)
        if isinstance(reading, type) and issubclass(reading, Exception):
            raise reading
        if callable(reading):
            reading = await reading(n)
        result: list[Record] = reading
        return result

    async def ack(self, positions: Any) -> None:
        self.acked += positions

    def fresh(self) -> "Given":
        return self


class Sink(sdk.DestinationConnector[sdk.Options]):
    """Takes `seconds` per write and keeps the numbers of every batch."""

    def slow(self, seconds: float) -> "Sink":
        self.seconds = seconds
        self.batches: list[list[int | None]] = []
        return self

    async def write(self, batch: Batch) -> None:
        await trio.sleep(self.seconds)
        self.batches.append([number_of(record) for record in batch])

    def fresh(self) -> "Sink":
        return self


class World:
    """A source in front of a sink, and the letters kept."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.sink = Sink().slow(0)

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    async def run(self, source: sdk.SourceConnector[Any], *, batch_size: int = 8, window: int = 64) -> PipelineState:
        pipeline = Pipeline(
            "p",
            sources=[Source("orders", source, batch_size=batch_size, window=window)],
            destinations=[Destination("sink", self.sink)],
            dead_letters=DeadLetters(self.keep),
        )
        return await Supervisor(pipeline, MemoryStore()).run()


def record(number: int, position: Any = None) -> Record:
    made = numbered_record(number)
    made.position = position_of(number) if position is None else position
    return made


class TestBrokenContracts:
    """The run ends at once, with an error that names the source and the rule."""

    @pytest.mark.parametrize(
        ("step", "rule"),
        [
            (ReturnNothing(), "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource"),
            (ReturnTooMany(), "read(4) returned 5 records"),
            (RepeatPosition(), "read() returned a position twice"),
            (EmptyPosition(), "read() returned a record without a position"),
        ],
    )
    @pytest.mark.parametrize("at", [4, 6])
    async def test_as_scripted(self, step: ScriptStep, rule: str, at: int, autojump_clock: MockClock) -> None:
        log = EventLog()
        # Asked again a little later the buffer is empty, so the source is asked for four.
        late = (Idle(), step)
        state = await World().run(
            ScriptedSource(records=9, log=log, script={at: late}, chunks=[4, 2]), batch_size=4, window=100
        )

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert state.error.code == "contract.broken"
        assert state.error.message == f"orders: {rule}"
        assert state.error.node == "orders"
        assert log.acked["source"] == [position_of(n) for n in range(len(log.acked["source"]))]
        assert len(log.acked["source"]) <= at
        log.check()

    @pytest.mark.parametrize(
        ("reading", "rule"),
        [
            (None, "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource"),
            (7, "read() must return a list of Record"),
            ((record(0),), "read() must return a list of Record"),
            ([record(0), "text"], "read() must return a list of Record"),
            ([record(0, "0")], "read() returned a record whose position is str, not bytes"),
            ([record(0, bytearray(b"0"))], "read() returned a record whose position is bytearray, not bytes"),
            ([record(0), record(1), record(0)], "read() returned a position twice"),
            (Reading([], {}), "read() returned nothing: wait for a record, or raise NothingYet or EndOfSource"),
            (Payloads([{}, {}], [b"1", b"2"], dict, Columns(keys=[b"k"])), "read() returned 2 payloads with 1 keys"),
            (Reading([record(0)], {1: "bad"}), "read() refused record 1 of 1"),
            (Reading([record(0)], {-1: "bad"}), "read() refused record -1 of 1"),
            (Reading([record(0)], {"0": "bad"}), "read() refused record '0' of 1"),  # type: ignore[dict-item]
            (Reading([record(0)], [0]), "read() must return refused records as a mapping of index to reason, not list"),  # type: ignore[arg-type]
        ],
    )
    async def test_with_wrong_values(self, reading: Any, rule: str, autojump_clock: MockClock) -> None:
        state = await World().run(Given().answering(reading))

        assert state.error is not None
        assert (state.error.code, state.error.message) == ("contract.broken", f"orders: {rule}")

    async def test_a_refused_index_is_checked_against_its_own_reading(self, autojump_clock: MockClock) -> None:
        """Readings are put together while the pipeline is busy: the index must not hit a record of the next."""
        world = World()
        world.sink.slow(5)
        wrong = Reading([record(5), record(6)], {2: "bad"})
        state = await world.run(
            Given().answering(*([record(n)] for n in range(5)), wrong, [record(7), record(8)]), batch_size=8
        )

        assert state.error is not None
        assert state.error.message == "orders: read() refused record 2 of 2"
        assert world.letters == []

    async def test_an_error_that_says_nothing_else_is_transient_and_names_the_call(
        self, autojump_clock: MockClock
    ) -> None:
        state = await World().run(Given().answering([record(0)], OSError))

        assert state.error is not None
        assert (state.error.code, state.error.message) == ("node.failed", "orders: read failed: OSError")


async def test_a_source_may_use_the_list_that_it_returned_again(autojump_clock: MockClock) -> None:
    world, reused = World(), [record(0)]
    world.sink.slow(1)

    def next_one(number: int) -> Callable[[int], Any]:
        async def read(n: int) -> list[Record]:
            await trio.sleep(0.1)
            reused[:] = [record(number)]
            return reused

        return read

    source = Given().answering(*(next_one(number) for number in range(20)))
    state = await world.run(source)

    assert state.status is Status.COMPLETED
    assert [number for batch in world.sink.batches for number in batch] == list(range(20))
    assert source.acked == [position_of(n) for n in range(20)]


class TestNothingYet:
    """A source that has nothing now is asked again after pauses that grow and start again after a record."""

    async def test_pauses_grow_to_half_a_second(self, autojump_clock: MockClock) -> None:
        source = Given().answering(*[NothingYet] * 8, [record(0)], NothingYet, [record(1)])
        state = await World().run(source)

        assert state.status is Status.COMPLETED
        times = [at for at, _ in source.asked]
        pauses = [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)]
        assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.0, 0.01, 0.0]
        assert source.acked == [b"0", b"1"]

    async def test_a_stop_does_not_wait_for_the_pause(self, autojump_clock: MockClock) -> None:
        log = EventLog()
        pipeline = Pipeline(
            "p",
            sources=[Source("orders", ScriptedSource(records=2, log=log, script={1: Idle(times=1000)}))],
            destinations=[Destination("destination", ScriptedDestination(log=log))],
        )
        supervisor = Supervisor(pipeline, MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(10.1)
            supervisor.stop()

        assert trio.current_time() == 10.1
        assert supervisor.state.status is Status.STOPPED
        assert log.acked["source"] == [b"0"]


@simulated(seeds=range(10))
async def test_records_that_the_source_could_not_understand_become_dead_letters_in_order(seed: int) -> None:
    log, world = EventLog(), World()
    script: dict[int, Any] = {n: Refuse(f"line {n} is no JSON") for n in (0, 3, 4, 9)}
    source = ScriptedSource(records=10, log=log, script=script, chunks=[3, 1])
    state = await world.run(source, batch_size=5)

    assert state.status is Status.COMPLETED
    assert [number for batch in world.sink.batches for number in batch] == [1, 2, 5, 6, 7, 8]
    assert [(each.message.sequence, each.position, each.node, each.error) for each in world.letters] == [
        (n, position_of(n), "orders", f"line {n} is no JSON") for n in (0, 3, 4, 9)
    ]
    assert [number_of(each.record) for each in world.letters] == [0, 3, 4, 9]
    assert log.acked["source"] == [position_of(n) for n in range(10)]


async def test_only_refused_records_are_a_batch_too(autojump_clock: MockClock) -> None:
    world = World()
    source = Given().answering(Reading([record(0), record(1)], {0: "bad", 1: "worse"}))
    state = await world.run(source)

    assert state.status is Status.COMPLETED
    assert [each.error for each in world.letters] == ["bad", "worse"]
    assert source.acked == [b"0", b"1"]


class TestBatches:
    """Under load single records travel together; idle, one goes through at once."""

    async def test_a_source_of_single_records_fills_batches_while_the_destination_is_busy(
        self, autojump_clock: MockClock
    ) -> None:
        world = World()
        world.sink.slow(10)
        source = Given().answering(*([record(n)] for n in range(60)))
        await world.run(source, batch_size=8, window=1000)

        assert [number for batch in world.sink.batches for number in batch] == list(range(60))
        sizes = [len(batch) for batch in world.sink.batches]
        assert sizes[-6:-1] == [8, 8, 8, 8, 8]
        assert len(sizes) <= 11

    @pytest.mark.parametrize(
        "later",
        [
            Positions(b"b:%d", [1, 2]),
            MapPositions({"p": 7}, [("p", [8, 9])]),
            [b"1", b"2"],
            EncodedPositions(["x", "y"]),
        ],
    )
    @pytest.mark.parametrize(
        "first",
        [Positions(b"a:%d", [1, 2]), MapPositions({}, [("p", [1, 2])]), [b"8", b"9"], EncodedPositions("vw")],
    )
    async def test_reads_with_other_kinds_of_positions_travel_together(
        self, first: Sequence[bytes], later: Sequence[bytes], autojump_clock: MockClock
    ) -> None:
        class Quick(Given):
            """Its reads are put together by the dispatcher, until half a batch is there."""

            blocking = False

            def read(self, n: int) -> Any:
                if not self.readings:
                    raise EndOfSource
                return self.readings.pop(0)

        world = World()
        source = Quick().answering(*(Payloads([{}, {}], positions, dict) for positions in (first, later)))
        state = await world.run(source)

        assert state.status is Status.COMPLETED
        assert source.acked == [*first, *later]
        assert [len(batch) for batch in world.sink.batches] == [4]

    async def test_a_lone_record_does_not_wait_for_others(self, autojump_clock: MockClock) -> None:
        log, world = EventLog(), World()
        script: dict[int, Any] = {n: Delay(60) for n in range(3)}
        await world.run(ScriptedSource(records=3, log=log, script=script))

        assert world.sink.batches == [[0], [1], [2]]
        assert [event.at for event in log.did("ack")] == [60, 120, 180]

    async def test_no_more_is_asked_for_than_batch_and_window_have_room_for(self, autojump_clock: MockClock) -> None:
        world = World()
        world.sink.slow(1)

        async def single(n: int) -> list[Record]:
            return [record(len(source.asked))]

        source = Given().answering(*[single] * 30)
        await world.run(source, batch_size=5, window=7)

        assert [number for batch in world.sink.batches for number in batch] == list(range(1, 31))
        assert {n for _, n in source.asked} <= {1, 2, 3, 4, 5}
        assert source.asked[0] == (0, 5)
        # One record is in the first write, six more fit into the window; then nothing until the first ack.
        assert [at for at, _ in source.asked].count(0) == 7
