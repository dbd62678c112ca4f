"""Pipelines of random shape with random misfortunes, stopped and started at random, against what must come out."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import trio

from conduit_py import (
    DeadLetter,
    DeadLetters,
    Destination,
    Pipeline,
    Processor,
    Record,
    Recovery,
    Retry,
    Source,
)
from conduit_py.errors import PipelineInvalid, RecordRefused
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import (
    Delay,
    EventLog,
    Fail,
    Idle,
    OnAck,
    OnAnswer,
    OnFlush,
    OutageStore,
    Refuse,
    ScriptedDestination,
    ScriptedSource,
    ScriptStep,
    position_of,
    run_with_outage,
    simulated,
)

QUICK = Recovery(delay_seconds=0.01, delay_max_seconds=0.02)

Labels: TypeAlias = tuple[int, ...]
"""The number of a record, then which piece it is, of which piece."""


@dataclass
class World:
    """What a random pipeline consists of, and what its ends keep."""

    rng: random.Random
    log: EventLog = field(default_factory=EventLog)
    letters: list[tuple[str, int]] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    behaviours: dict[str, Callable[[int], str]] = field(default_factory=dict)
    refused_at: dict[str, set[int]] = field(default_factory=dict)

    async def keep(self, letter: DeadLetter) -> None:
        await trio.sleep(self.rng.choice([0, 0, 0.3]))
        if self.log.note("letters", "keep", letter.message.source, letter.position.decode()):
            self.letters.append((letter.message.source, int(letter.position)))

    def pipeline(self) -> Callable[[], Pipeline]:
        """A pipeline of random shape, to be made again for each supervisor."""
        while True:
            parts = [self._source(f"s{n}") for n in range(self.rng.randint(1, 3))]
            steps = [self._processor(f"p{n}", len(parts)) for n in range(self.rng.randint(0, 4))]
            ends = [self._destination(f"d{n}", len(parts), len(steps)) for n in range(self.rng.randint(1, 3))]

            def made(parts: Any = parts, steps: Any = steps, ends: Any = ends) -> Pipeline:
                return Pipeline(
                    "p",
                    sources=[make() for make in parts],
                    processors=[make() for make in steps],
                    destinations=[make() for make in ends],
                    dead_letters=DeadLetters(self.keep),
                )

            try:
                compile_pipeline(made())
                return made
            except PipelineInvalid:
                continue

    def _script(self, steps: list[Any], chance: float = 0.1) -> dict[int, Any]:
        return {n: self.rng.choice(steps) for n in range(25) if self.rng.random() < chance}

    def _source(self, id: str) -> Callable[[], Source]:
        script = self._script([Delay(0.2), Fail("read"), Idle(2), Refuse("unreadable"), OnAck(Fail("ack"))])
        self.refused_at[id] = {n for n, step in script.items() if isinstance(step, Refuse)}
        records = self.records[id] = self.rng.randint(0, 25)
        options: dict[str, Any] = {"chunks": self.rng.choice([[], [1], [3, 1], [2]]), "prunes": True}
        window, batch_size = self.rng.randint(1, 12), self.rng.randint(1, 6)
        return lambda: Source(
            id,
            ScriptedSource(name=id, records=records, log=self.log, script=script, **options),
            window=window,
            batch_size=batch_size,
        )

    def _processor(self, id: str, sources: int) -> Callable[[], Processor]:
        kind, remainder = self.rng.choice(["keep", "filter", "split", "refuse"]), self.rng.randrange(4)
        self.behaviours[id] = lambda n: kind if n % 4 == remainder else "keep"
        workers, after = self.rng.choice([1, 1, 3]), self._after(sources, int(id[1:]))
        flaky = self.rng.random() < 0.3
        met: set[Any] = set()

        async def work(record: Record) -> Record | list[Record] | None:
            if self.rng.random() < 0.2:
                await trio.sleep(0.05)
            n, labels = record.payload["n"], record.payload.get("labels", ())
            if flaky and n % 5 == 0 and (n, labels) not in met:
                met.add((n, labels))
                record.payload["n"] = -1
                raise OSError("once")
            match self.behaviours[id](n):
                case "filter":
                    return None
                case "split":
                    return [Record.of({"n": n, "labels": (*labels, piece)}) for piece in range(3)]
                case "refuse":
                    raise RecordRefused(id)
            return record

        return lambda: Processor(
            id, work, workers=workers, after=after, retry=Retry(attempts=3, delay_seconds=0.01) if flaky else None
        )

    def _destination(self, id: str, sources: int, steps: int) -> Callable[[], Destination]:
        acks = self.rng.choice(list(AckMode))
        own: dict[AckMode, list[ScriptStep]] = {
            AckMode.WRITE: [],
            AckMode.FLUSH: [OnFlush(Fail("flush"))],
            AckMode.LATER: [OnAnswer(Fail("answer")), OnAnswer(Delay(self.rng.random()))],
        }
        script = self._script([Delay(0.2), Refuse("no"), Fail("write"), *own[acks]], 0.2)
        self.refused_at[id] = {n for n, step in script.items() if isinstance(step, Refuse)}
        retry = Retry(attempts=2, delay_seconds=0.01) if self.rng.random() < 0.3 else None
        after = self._after(sources, steps)
        return lambda: Destination(
            id, ScriptedDestination(name=id, log=self.log, script=script, acks=acks), retry=retry, after=after
        )

    def _after(self, sources: int, steps: int) -> list[str] | None:
        if self.rng.random() < 0.4:
            return None
        known = [f"s{n}" for n in range(sources)] + [f"p{n}" for n in range(steps)]
        return self.rng.sample(known, self.rng.randint(1, min(2, len(known))))

    def fate(self, graph: Graph, source: str, n: int) -> tuple[dict[str, list[Labels]], bool]:
        """What every destination must hold of a record, and whether it ends as a dead letter."""
        held: dict[str, list[Labels]] = {}
        if n in self.refused_at[source]:
            return held, True
        refused = False
        for node, pieces in self._travel(graph, source, n, [()]):
            if graph.nodes[node].kind == "destination" and n not in self.refused_at[node]:
                held[node] = pieces
            else:
                refused = True
        return held, refused

    def _travel(self, graph: Graph, node: str, n: int, pieces: list[Labels]) -> Iterator[tuple[str, list[Labels]]]:
        """Where the pieces of a record end that are not filtered: destinations, or processors that refuse them."""
        for lower in graph.nodes[node].outputs:
            behaviour = self.behaviours[lower](n) if lower in self.behaviours else "keep"
            if behaviour == "filter":
                continue
            if behaviour == "refuse":
                yield lower, pieces
                continue
            split = behaviour == "split"
            after = [(*piece, number) for piece in pieces for number in range(3)] if split else pieces
            if graph.nodes[lower].kind == "destination":
                yield lower, after
            else:
                yield from self._travel(graph, lower, n, after)

    def check(self, graph: Graph) -> None:
        for source in graph.sources:
            numbers = range(self.records[source.id])
            fates = {n: self.fate(graph, source.id, n) for n in numbers}
            for end in graph.destinations:
                due = [(n, *piece) for n in numbers for piece in fates[n][0].get(end.id, [])]
                assert self._first(self.log.stored[end.id], source.id, in_order=False) == due
                received = self._first(self.log.received[end.id], source.id)
                assert received == sorted(received)
            letters = list(dict.fromkeys(n for id, n in self.letters if id == source.id))
            assert letters == [n for n in numbers if fates[n][1]]
            acked = [int(position) for position in self.log.acked[source.id]]
            assert acked == sorted(set(acked))
        self.log.check()

    def _first(self, deliveries: list[Any], source: str, *, in_order: bool = True) -> list[Labels]:
        """The labels of what arrived from a source, without repeats."""
        payloads = [each.record.payload for each in deliveries if each.source == source]
        labels = list(dict.fromkeys((each["n"], *each.get("labels", ())) for each in payloads))
        return labels if in_order else sorted(labels)


@simulated(seeds=range(60))
async def test_all_invariants_hold_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    world, store = World(rng), MemoryStore()
    made = world.pipeline()
    graph = compile_pipeline(made())
    while True:
        supervisor = Supervisor(made(), store, recovery=QUICK, rng=rng)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            if rng.random() < 0.5:
                await trio.sleep(rng.random() * 2)
                rng.choice([supervisor.stop, supervisor.force])()
        if supervisor.state.status is Status.COMPLETED:
            break
        assert supervisor.state.status is Status.STOPPED

    assert supervisor.progress().in_flight == 0
    await check_the_end(world, graph, store)


@simulated(seeds=range(40))
async def test_all_invariants_hold_whenever_the_power_fails(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    store = OutageStore(world.log)
    made = world.pipeline()
    while await run_with_outage(
        Supervisor(made(), store, recovery=QUICK, rng=rng).run, log=world.log, moment=rng.randrange(10, 150)
    ):
        pass

    await check_the_end(world, compile_pipeline(made()), store)


async def check_the_end(world: World, graph: Graph, store: MemoryStore) -> None:
    world.check(graph)
    assert await store.positions("p") == {
        node.id: position_of(world.records[node.id] - 1) for node in graph.sources if world.records[node.id]
    }
