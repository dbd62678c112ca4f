"""Dead letters that are kept and sent again: both halves of a pipeline together do with them what the whole does.

No Spark is needed: the half of the executors runs here, part by part, as a task would run it.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
from conduit_connectors import memory
from drawn_pipelines import RECORDS, Draw, Kept, dropping, numbered, plain, splitting, whole_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from conduit_py import Batch, DeadLetters, Destination, Pipeline, Record, Source, State
from conduit_py import processor as made_of
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline_settings import Delivery
from conduit_py.sdk.destination import Refusals
from conduit_py.sdk.source import Reading
from conduit_py.spark.engine.split import PipelineSplit
from conduit_py.spark.engine.task import TaskInput, carry_records, run_task
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter, StoredLetter


class World:
    """What nodes think of records, which changes from run to run, and pipelines whose nodes think so."""

    def __init__(self, seed: int, delivery: Delivery) -> None:
        self._draw = Draw(random.Random(seed))
        self._delivery = delivery
        self.below = 1000
        """Only smaller numbers are refused."""

    def refuses(self, payload: Any, modulus: int) -> bool:
        n: int = payload["n"]
        return n < self.below and n % modulus == 2

    def unreadable(self, record: Record) -> bool:
        return self.refuses(record.payload.after, 7)

    def pipeline(self, records: dict[str, list[Any]]) -> Pipeline:
        world = self

        class Doubtful(memory.Source):
            async def read(self, n: int) -> Reading:  # type: ignore[override]
                read = await super().read(n)
                return Reading(read, {at: "unreadable" for at, each in enumerate(read) if world.unreadable(each)})

        class Moody(Kept):
            def write(self, batch: Batch) -> Refusals | None:
                refused = {at: "full" for at, each in enumerate(batch) if world.refuses(each.payload, 4)}
                taken = [each.copy() for at, each in enumerate(batch) if at not in refused]
                self.options.into.extend(each.payload.after for each in taken)
                return refused or None

        def judging(record: Record) -> Record:
            if world.refuses(record.payload, 5):
                raise ValueError("two")
            return record

        @made_of(state=True)
        def summing(record: Record, state: State) -> Record:
            """In no order: letters that are sent again come at any time."""
            if world.refuses(record.payload, 6):
                raise ValueError("no sum")
            state.put("sum", state.get("sum", 0) + record.payload["n"])
            return record

        self._draw.source, self._draw.destination = Doubtful, Moody
        stateful = [summing, summing] if self._delivery == "exactly_once" else []
        self._draw.works = [plain, dropping, splitting, judging, *stateful]
        return whole_of(self._draw, records, dead_letters=DeadLetters("journal"), delivery=self._delivery)


class Outcome(NamedTuple):
    """What a pipeline left behind."""

    written: dict[str, Counter[bytes]]
    letters: dict[Any, Any]
    states: dict[bytes, bytes]
    positions: dict[str, bytes]


async def read_kept(store: MemoryStore) -> list[StoredLetter]:
    page = await store.letters.page(LetterFilter(), limit=1000)
    return [await store.letters.letter(each.id) for each in page.letters]


def fields_of(letter: StoredLetter) -> tuple[Any, ...]:
    """What a letter says; branches come in any order."""
    history = sorted((each.attempt, each.node, each.error, each.tries) for each in letter.history)
    return {node: record.payload.after for node, record in letter.records.items()}, history, letter.attempts


async def run_to_outcome(pipeline: Pipeline, store: MemoryStore, outs: dict[str, Counter[bytes]]) -> Outcome:
    with trio.fail_after(1000):
        state = await Supervisor(pipeline, store).run()
    assert state.status is Status.COMPLETED, state.error
    for destination in pipeline.destinations:
        outs.setdefault(destination.id, Counter()).update(map(msgspec.json.encode, destination.connector.options.into))
        destination.connector.options.into.clear()
    letters = {(each.source, each.position, each.piece): fields_of(each) for each in await read_kept(store)}
    states = dict(await (await store.claim("p")).scan())
    return Outcome({id: Counter(written) for id, written in outs.items()}, letters, states, await store.positions("p"))


async def in_halves(whole: Pipeline, records: dict[str, list[Any]], part_size: int, world: World) -> Pipeline:
    """The half of the driver, with sources that give what executors made of the records."""
    made = PipelineSplit(compile_pipeline(whole))
    executed = made.executor_pipeline(source=lambda _: None)
    outcomes: dict[str, list[Record]] = {source.id: [] for source in whole.sources}
    for id, mine in outcomes.items():
        read = [Record.of(payload, position=b"memory:1:%d" % at) for at, payload in enumerate(records[id])]
        for start in range(0, len(read), part_size):
            now = read[start : start + part_size]
            refused = {at: "unreadable" for at, each in enumerate(now) if world.unreadable(each)}
            done = await run_task(executed, TaskInput(id, carried=carry_records(now, refused)))
            assert done.error is None
            mine += [Record.of(each) for each in done.outcomes]
    return made.driver_pipeline(lambda source: memory.Source(records=outcomes[source.id]))


async def three_runs(world: World, sources: list[str], below: list[int], part_size: int | None = None) -> list[Outcome]:
    """Runs, each with more records, nodes that refuse fewer of them, and all letters of the one before sent again."""
    records = {id: numbered(id) for id in sources}
    whole = world.pipeline(records)
    store, outs, outcomes = MemoryStore(), dict[str, Counter[bytes]](), list[Outcome]()
    for turn, world.below in enumerate(below):
        for id in sources:
            records[id][:] = numbered(id, RECORDS + 6 * turn)
        await store.letters.queue("p", {each.id: list(each.records) for each in await read_kept(store)})
        run = whole if part_size is None else await in_halves(whole, records, part_size, world)
        outcomes.append(await run_to_outcome(run, store, outs))
    return outcomes


def run(*arguments: Any) -> list[Outcome]:
    return trio.run(three_runs, *arguments, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), sources=st.integers(1, 2), part_size=st.integers(1, RECORDS))
def test_letters_of_any_pipeline_are_kept_and_sent_again_as_on_one_machine(
    delivery: Delivery, seed: int, sources: int, part_size: int
) -> None:
    ids, below = ["a", "b"][:sources], [1000, 6, 0]

    whole = run(World(seed, delivery), ids, below)
    halves = run(World(seed, delivery), ids, below, part_size)
    never_refused = run(World(seed, delivery), ids, [0, 0, 0])

    assert halves == whole
    # Once all is taken nothing is missing, and nothing came twice.
    assert halves[-1].letters == {}
    assert numbers(halves[-1]) == numbers(never_refused[-1])
    assert halves[-1].states == never_refused[-1].states


async def test_what_could_only_be_kept_as_text_is_not_sent_again_before_it_is_edited(
    autojump_clock: MockClock,
) -> None:
    """Executors can carry plain values only. The text in place of others is for people, not for a destination."""

    def spoilt(record: Record) -> Record:
        record.payload["path"] = Path("a") if record.payload["n"] == 1 else "a"
        return record

    world, records, store, outs = World(0, "at_least_once"), {"a": numbered("a", 3)}, MemoryStore(), dict[str, Any]()
    world.below = 0
    whole = Pipeline(
        "p",
        sources=[Source("a", memory.Source(records=records["a"]))],
        processors=[spoilt],
        destinations=[Destination("out", Kept(into=[]))],
        dead_letters=DeadLetters("journal"),
    )
    attempts = []
    for _ in range(3):
        await run_to_outcome(await in_halves(whole, records, 2, world), store, outs)
        for letter in await read_kept(store):
            attempts.append((letter.node, letter.attempts, letter.history[-1].error))
            if letter.attempts == 2:
                await store.letters.edit(letter.id, {"out": Record.of({"source": "a", "n": 1})})
            await store.letters.queue("p", {letter.id: ["out"]})

    assert attempts == [
        (
            "out",
            1,
            "payload.after.path is a pathlib.PosixPath, which cannot be encoded "
            "(keep plain values in records: numbers, text, bytes, dates, lists and dicts)",
        ),
        ("out", 2, "not sent again: it had a value that cannot be stored, which was replaced by text; edit it first"),
    ]
    assert sorted(msgspec.json.decode(each)["n"] for each in outs["out"].elements()) == [0, 1, 2]


def numbers(outcome: Outcome) -> dict[str, Counter[int]]:
    """How often each number is at each destination: what a record carries may tell that it was refused once."""
    counts: dict[str, Counter[int]] = {}
    for id, written in outcome.written.items():
        counts[id] = Counter()
        for payload, times in written.items():
            counts[id][msgspec.json.decode(payload)["n"]] += times
    return counts
