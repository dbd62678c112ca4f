"""Pipelines that are more than a line: fan-in, fan-out in the middle, branches of single sources."""

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Source
from conduit_py.errors import RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Block,
    Delay,
    EventLog,
    Fail,
    OnAnswer,
    Refuse,
    ScriptedDestination,
    ScriptedSource,
    position_of,
    simulated,
)


def source(
    id: str, log: EventLog, *, processors: Any = (), batch_size: int = 3, window: int = 12, **script: Any
) -> Source:
    script.setdefault("records", 20)
    connector = ScriptedSource(name=id, log=log, **script)
    return Source(id, connector, processors=processors, batch_size=batch_size, window=window)


def sink(
    id: str, log: EventLog, *, processors: Any = (), after: Any = None, when: Any = None, **script: Any
) -> Destination:
    connector = ScriptedDestination(name=id, log=log, **script)
    return Destination(id, connector, processors=processors, after=after, when=when)


def positions(count: int) -> list[bytes]:
    return [position_of(n) for n in range(count)]


class TestFanIn:
    """Several sources, one pipeline: each keeps its order and its positions, none starves another."""

    @simulated(seeds=range(10))
    async def test_positions_that_collide_are_kept_apart(self, seed: int) -> None:
        log, store = EventLog(), MemoryStore()
        pipeline = Pipeline(
            "p",
            sources=[source("a", log, records=20), source("b", log, records=13), source("c", log, records=1)],
            processors=[lambda record: record],
            destinations=[
                sink("x", log, acks=AckMode.LATER, script={n: OnAnswer(Delay(n % 3)) for n in range(20)}),
                sink("y", log, acks=AckMode.FLUSH),
            ],
        )
        state = await Supervisor(pipeline, store).run()

        assert state.status is Status.COMPLETED
        for id, count in (("a", 20), ("b", 13), ("c", 1)):
            assert log.acked[id] == positions(count)
            assert log.numbers("y", id) == list(range(count))
        assert await store.positions("p") == {"a": b"19", "b": b"12", "c": b"0"}
        keys = [delivery.key for delivery in log.stored["y"]]
        assert len(set(keys)) == 34
        log.check()

    @simulated(seeds=range(5))
    async def test_under_load_every_source_gets_its_share(self, seed: int) -> None:
        log = EventLog()
        slow: dict[int, Any] = {n: Delay(0.1) for n in range(0, 300, 3)}
        pipeline = Pipeline(
            "p",
            sources=[source(id, log, records=300, window=300) for id in "abc"],
            destinations=[sink("x", log, script=slow)],
        )
        await Supervisor(pipeline, MemoryStore()).run()

        # From when all are at work until the first has ended, no source is ever far ahead of another.
        shares: Counter[str] = Counter()
        for delivery in log.stored["x"]:
            shares[delivery.source] += 1
            if max(shares.values()) == 300:
                break
            if min(shares[id] for id in "abc") > 30:
                assert max(shares.values()) - min(shares.values()) <= 12

    @simulated(seeds=range(5))
    async def test_one_source_ends_and_the_others_go_on_until_all_have_ended(self, seed: int) -> None:
        log = EventLog()
        pipeline = Pipeline(
            "p",
            sources=[
                source("short", log, records=2),
                source("long", log, records=20, script={n: Delay(10) for n in range(20)}),
                source("empty", log, records=0),
            ],
            destinations=[sink("x", log)],
        )
        supervisor = Supervisor(pipeline, MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(95)
            assert supervisor.progress().status == "running"
            assert log.acked["short"] == positions(2)
            assert log.acked["long"] == positions(9)

        assert trio.current_time() == 200
        assert supervisor.state.status is Status.COMPLETED
        assert log.acked["long"] == positions(20)

    @simulated(seeds=range(5))
    async def test_a_stop_ends_the_endless_ones(self, seed: int) -> None:
        log = EventLog()
        pipeline = Pipeline(
            "p",
            sources=[source("short", log, records=2), source("endless", log, records=7, bounded=False)],
            destinations=[sink("x", log)],
        )
        supervisor = Supervisor(pipeline, MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(10)
            supervisor.stop()

        assert trio.current_time() == 10
        assert supervisor.state.status is Status.STOPPED
        assert log.acked["endless"] == positions(7)

    @simulated(seeds=range(5))
    async def test_a_source_whose_window_is_full_does_not_hold_up_another(self, seed: int) -> None:
        log = EventLog()
        pipeline = Pipeline(
            "p",
            sources=[source("stuck", log, window=4), source("free", log)],
            destinations=[
                sink("x", log, after=["stuck", "free"]),
                sink("y", log, acks=AckMode.LATER, after="stuck", script={0: OnAnswer(Block())}),
            ],
        )
        supervisor = Supervisor(pipeline, MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(50)
            supervisor.force()

        assert log.acked["free"] == positions(20)
        assert log.acked["stuck"] == []
        assert len(log.read["stuck"]) == 4


class TestGeneralGraphs:
    """`after` makes any DAG: votes are counted for exactly the destinations that a message can reach."""

    @simulated(seeds=range(10))
    async def test_branches_of_single_sources_and_a_fan_out_in_the_middle(self, seed: int) -> None:
        log, letters = EventLog(), []

        async def keep(letter: DeadLetter) -> None:
            letters.append(
                (letter.message.source, letter.message.sequence, sorted(each.node for each in letter.failures))
            )

        def drop_thirds(record: Record) -> Record | None:
            return None if record.payload["n"] % 3 == 0 else record

        def refuse_seven(record: Record) -> Record:
            if record.payload["n"] == 7:
                raise RecordRefused("seven")
            return record

        pipeline = Pipeline(
            "p",
            sources=[source("a", log), source("b", log), source("c", log)],
            processors=[
                Processor("left", drop_thirds, after=["a", "b"]),
                Processor("right", refuse_seven, after=["b", "c"]),
                Processor("tail", lambda record: [record, record.copy()], after="right"),
            ],
            destinations=[
                sink("only-left", log, after="left", acks=AckMode.FLUSH),
                sink("both", log, after=["left"], processors=[lambda record: record], script={8: Refuse("eight")}),
                sink("only-tail", log, after="tail", acks=AckMode.LATER),
                sink("raw-c", log, after="c", script={7: Refuse("seven too")}),
            ],
            dead_letters=DeadLetters(keep),
        )
        state = await Supervisor(pipeline, MemoryStore()).run()

        assert state.status is Status.COMPLETED
        kept = [n for n in range(20) if n % 3]
        for id in ("a", "b"):
            assert log.numbers("only-left", id) == kept
            assert log.numbers("both", id) == [n for n in kept if n != 8]
        for id in ("b", "c"):
            doubled = [n for n in range(20) for _ in range(2) if n != 7]
            assert sorted(n for n in log.numbers("only-tail", id) if n is not None) == doubled
        assert log.numbers("raw-c") == [n for n in range(20) if n != 7]
        assert sorted(letters) == [
            ("a", 8, ["both"]),
            ("b", 7, ["right"]),
            ("b", 8, ["both"]),
            ("c", 7, ["raw-c", "right"]),
        ]
        for id in "abc":
            assert log.acked[id] == positions(20)
        log.check()

    @pytest.mark.parametrize("acks", list(AckMode))
    async def test_what_one_branch_changes_no_other_branch_sees(self, acks: AckMode, autojump_clock: MockClock) -> None:
        log = EventLog()

        def deface(record: Record) -> Record:
            record.payload["n"] += 1000
            record.payload.after["list"].append("x")  # type: ignore[index, call-overload]
            record.metadata["seen"] = "yes"
            assert isinstance(record.key, dict)
            record.key["defaced"] = True
            return record

        given = [Record.of({"n": n, "list": []}, key={}) for n in range(9)]
        pipeline = Pipeline(
            "p",
            sources=[source("a", log, records=given)],
            destinations=[
                sink("first", log, processors=[deface]),
                sink("plain", log, acks=acks),
                sink("second", log, processors=[deface, deface]),
            ],
        )
        await Supervisor(pipeline, MemoryStore()).run()

        def seen(id: str) -> list[Any]:
            records = [delivery.record for delivery in log.stored[id]]
            return [(r.payload.after, r.key, r.metadata) for r in records]

        assert seen("plain") == [({"n": n, "list": []}, {}, {}) for n in range(9)]
        assert seen("first") == [({"n": n + 1000, "list": ["x"]}, {"defaced": True}, {"seen": "yes"}) for n in range(9)]
        assert seen("second") == [
            ({"n": n + 2000, "list": ["x", "x"]}, {"defaced": True}, {"seen": "yes"}) for n in range(9)
        ]

    @simulated(seeds=range(10))
    async def test_a_split_in_one_branch_is_settled_there_alone(self, seed: int) -> None:
        log, letters = EventLog(), []

        async def keep(letter: DeadLetter) -> None:
            letters.append(letter.message[1:])

        def in_three(record: Record) -> list[Record]:
            return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(3)]

        pipeline = Pipeline(
            "p",
            sources=[source("a", log, records=8)],
            destinations=[
                sink("split", log, processors=[in_three], acks=AckMode.LATER, script={42: Refuse(), 40: Refuse()}),
                sink("plain", log, acks=AckMode.FLUSH),
            ],
            dead_letters=DeadLetters(keep),
        )
        state = await Supervisor(pipeline, MemoryStore()).run()

        assert state.status is Status.COMPLETED
        assert letters == [(4, (0,)), (4, (2,))]
        assert log.numbers("plain") == list(range(8))
        assert log.acked["a"] == positions(8)

    @simulated(seeds=range(10))
    async def test_a_failure_in_one_branch_ends_all_and_a_restart_repeats_for_all(self, seed: int) -> None:
        log, store = EventLog(), MemoryStore()

        def made() -> Pipeline:
            return Pipeline(
                "p",
                sources=[source("a", log), source("b", log)],
                processors=[Processor("mid", lambda record: record)],
                destinations=[sink("x", log), sink("y", log, script={11: Fail("down")}), sink("z", log, after="b")],
            )

        # Once for the record 11 of each source.
        for _ in range(2):
            failed = await Supervisor(made(), store).run()
            assert failed.error is not None
            assert (failed.error.message, failed.error.node) == ("down", "y")
        state = await Supervisor(made(), store).run()

        assert state.status is Status.COMPLETED
        for id, sinks in (("a", "xy"), ("b", "xyz")):
            for name in sinks:
                assert list(dict.fromkeys(log.numbers(name, id))) == list(range(20))
        assert log.numbers("z", "a") == []
        log.check()

    @simulated(seeds=range(5))
    async def test_processors_of_a_source_run_before_the_fan_in_and_those_of_a_destination_after_the_fan_out(
        self, seed: int
    ) -> None:
        log = EventLog()

        def tag(letter: str) -> Any:
            def tagging(record: Record) -> Record:
                record.payload["path"] = record.payload.get("path", "") + letter
                return record

            return tagging

        pipeline = Pipeline(
            "p",
            sources=[source("a", log, records=2, processors=[tag("a"), tag("A")]), source("b", log, records=1)],
            processors=[tag("1"), tag("2")],
            destinations=[sink("x", log, processors=[tag("x")]), sink("y", log)],
        )
        await Supervisor(pipeline, MemoryStore()).run()

        paths = [[(each.source, each.record.payload["path"]) for each in log.stored[id]] for id in "xy"]
        assert [sorted(path) for path in paths] == [
            [("a", "aA12x"), ("a", "aA12x"), ("b", "12x")],
            [("a", "aA12"), ("a", "aA12"), ("b", "12")],
        ]
