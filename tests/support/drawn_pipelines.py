"""Pipelines drawn at random, between lists: sound graphs of processors that filter, split, refuse and keep state."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from conduit_connectors import memory
from pydantic import Field, InstanceOf

from conduit_py import Batch, DeadLetters, Destination, Pipeline, Processor, Record, Source, State, sdk
from conduit_py import processor as made_of
from conduit_py.sdk import WriteGuarantee
from conduit_py.sdk.destination import Refusals

RECORDS = 12


def whole_of(draw: "Draw", records: dict[str, list[Any]], **more: Any) -> Pipeline:
    """A sound graph drawn at random: each processor and destination joins ends that no source reaches twice."""
    names = (f"node-{number}" for number in range(100))
    sources = [Source(id, draw.source(records=records[id]), processors=draw.chain(names)) for id in records]
    reached = {id: {id} for id in records}
    loose = list(records)
    processors = []
    for _ in range(draw.number(4)):
        inputs = draw.disjoint(list(reached), reached)
        node = draw.processor(next(names), after=inputs)
        processors.append(node)
        reached[node.id] = set().union(*(reached[id] for id in inputs))
        loose = [id for id in loose if id not in inputs] + [node.id]
    destinations: list[Destination] = []
    while loose:
        inputs = [loose.pop()] if not draw.number(2) else draw.disjoint(loose, reached)
        loose = [id for id in loose if id not in inputs]
        id = f"out-{len(destinations)}"
        when = draw.condition()
        kept = draw.destination(into=[])
        destinations.append(Destination(id, kept, after=inputs, when=when, processors=draw.chain(names)))
    settings: dict[str, Any] = {"dead_letters": DeadLetters(Kept(into=[])), "delivery": "exactly_once"}
    return Pipeline("p", sources=sources, processors=processors, destinations=destinations, **(settings | more))


class Draw:
    """Parts of pipelines, by a generator of numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.source: type[memory.Source] = memory.Source
        self.destination: type[Kept] = Kept
        self.works: Sequence[Any] = [plain, dropping, splitting, refusing, counting, counting]

    def number(self, most: int) -> int:
        return self._rng.randint(0, most)

    def disjoint(self, ids: list[str], reached: dict[str, set[str]]) -> list[str]:
        """At least one of these, no two of which any source reaches."""
        chosen: list[str] = []
        seen: set[str] = set()
        for id in self._rng.sample(ids, len(ids)):
            if not reached[id] & seen and (not chosen or self._rng.random() < 0.6):
                chosen.append(id)
                seen |= reached[id]
        return chosen

    def chain(self, names: Iterator[str]) -> list[Processor]:
        return [self.processor(next(names)) for _ in range(max(0, self.number(3) - 1))]

    def condition(self) -> Callable[[Record], bool] | None:
        modulus = self.number(4)
        return (lambda record: record.payload["n"] % modulus == 0) if modulus > 1 else None

    def processor(self, id: str, **more: Any) -> Processor:
        work: Any = self._rng.choice(self.works)
        if isinstance(work, sdk.Processor):
            return Processor(id, work, when=self.condition(), **more)

        def traced(record: Record) -> Any:
            record.payload["path"] = [*record.payload["path"], id]
            return work(record)

        return Processor(id, traced, when=self.condition(), **more)


class KeptOptions(sdk.Options):
    """Where to keep."""

    into: Annotated[InstanceOf[list[Any]], Field(description="what was written")]


class Kept(sdk.DestinationConnector[KeptOptions]):
    """Keeps payloads in a list; nothing crashes here, so nothing comes twice."""

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.IDEMPOTENT
    blocking = False

    def write(self, batch: Batch) -> Refusals | None:
        self.options.into.extend(record.copy().payload.after for record in batch)
        return None


def plain(record: Record) -> Record:
    return record


@made_of(state=True)
def counting(record: Record, state: State) -> Record:
    count = state.get(record.payload["source"], 0) + 1
    state.put(record.payload["source"], count)
    record.payload["counts"] = [*record.payload.get("counts", []), count]
    return record


def dropping(record: Record) -> Record | None:
    return None if record.payload["n"] % 4 == 1 else record


def splitting(record: Record) -> list[Record]:
    return [record, record.copy()][: record.payload["n"] % 3]


def refusing(record: Record) -> Record:
    if record.payload["n"] % 5 == 2:
        raise ValueError("two")
    return record


def numbered(source: str, count: int = RECORDS) -> list[Any]:
    return [{"source": source, "n": n, "path": []} for n in range(count)]
