"""The contract of a pipeline, on both engines from one source: what holds on one machine holds on a cluster."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, generator, memory
from conduit_connectors.spark.options import SparkOptions

from conduit_py import pipeline as p
from conduit_py.batch import Batch
from conduit_py.errors import FatalError, TransientError
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Record
from conduit_py.sdk.processor import Processor, processor
from conduit_py.spark.supervisor import SparkSupervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store
from conduit_py.transaction import Transaction

Engine = Callable[[p.Pipeline, Store], Supervisor]
PART_SIZE = 2000
"""Small enough that a test's file has many parts."""


@pytest.fixture(scope="session")
def on_spark(spark: Any, spark_options: dict[str, Any]) -> Engine:
    def supervised(pipeline: p.Pipeline, store: Store) -> Supervisor:
        return SparkSupervisor(pipeline, store, spark=SparkOptions(**spark_options), part_size=PART_SIZE)

    return supervised


@pytest.fixture(params=["trio", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return Supervisor if request.param == "trio" else request.getfixturevalue("on_spark")


@processor
def doubled(record: Record) -> Record | list[Record] | None:
    """Every third record is filtered, every fifth split, every seventh refused."""
    n = record.payload["n"]
    if n % 7 == 6:
        raise ValueError(f"{n} is no good")
    record.payload["double"] = 2 * n
    if n % 3 == 2:
        return None
    return [record, record.copy()] if n % 5 == 4 else record


def expected(numbers: Sequence[int]) -> list[int]:
    return [n for n in numbers if n % 7 != 6 and n % 3 != 2 for _ in range(2 if n % 5 == 4 else 1)]


def refused(numbers: Sequence[int]) -> list[int]:
    return [n for n in numbers if n % 7 == 6]


def write_lines(path: Path, numbers: Sequence[int]) -> None:
    with path.open("a") as lines:
        lines.writelines(json.dumps({"n": n}) + "\n" for n in numbers)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def from_file(folder: Path, **more: Any) -> p.Pipeline:
    settings: dict[str, Any] = {
        "dead_letters": p.DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json"))
    }
    return p.Pipeline(
        "numbers",
        sources=[p.Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
        processors=[doubled],
        destinations=[p.Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
        **(settings | more),
    )


async def test_records_are_filtered_split_and_refused_in_order(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(1000))
    supervisor = engine(from_file(tmp_path), MemoryStore())

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert [row["n"] for row in read_lines(tmp_path / "out.jsonl")] == expected(range(1000))
    letters = read_lines(tmp_path / "dead.jsonl")
    assert [letter["record"]["payload"]["after"] for letter in letters] == [{"n": n} for n in refused(range(1000))]
    assert {(letter["node"], letter["error"]) for letter in letters[:1]} == {("doubled", "ValueError: 6 is no good")}
    progress = supervisor.progress()
    assert (progress.read, progress.acked, progress.dead_letters) == (1000, 1000, len(refused(range(1000))))
    assert progress.filtered == sum(n % 3 == 2 and n % 7 != 6 for n in range(1000))
    assert [(meter.node, meter.records) for meter in progress.nodes] == [
        ("in", 1000),
        ("doubled", 1000),
        ("out", len(expected(range(1000)))),
        ("dead-letters", len(refused(range(1000)))),
    ]


async def test_letters_and_positions_are_the_same_on_both_engines(tmp_path: Path, on_spark: Engine) -> None:
    stores = {}
    for name, engine in (("trio", Supervisor), ("spark", on_spark)):
        (tmp_path / name).mkdir()
        # One file for both: a position tells which file it is of.
        (tmp_path / name / "in.jsonl").symlink_to(tmp_path / "in.jsonl")
        stores[name] = MemoryStore()
        if name == "trio":
            write_lines(tmp_path / "in.jsonl", range(500))
        await engine(from_file(tmp_path / name), stores[name]).run()

    letters = [read_lines(tmp_path / name / "dead.jsonl") for name in stores]
    kept = ("source", "position", "piece", "node", "error", "attempt", "failures", "record")
    assert [[letter[key] for key in kept] for letter in letters[0]] == [
        [letter[key] for key in kept] for letter in letters[1]
    ]
    assert await stores["trio"].positions("numbers") == await stores["spark"].positions("numbers")


async def test_a_pipeline_goes_from_one_engine_to_the_other_and_on_from_where_it_was(
    tmp_path: Path, on_spark: Engine
) -> None:
    store = MemoryStore()
    for index, engine in enumerate((Supervisor, on_spark, on_spark, Supervisor)):
        write_lines(tmp_path / "in.jsonl", range(300 * index, 300 * index + 300))
        state = await engine(from_file(tmp_path), store).run()
        assert state.status is Status.COMPLETED, state.error

    assert [row["n"] for row in read_lines(tmp_path / "out.jsonl")] == expected(range(1200))


async def test_several_sources_fan_out_to_several_destinations(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(300))
    every: list[Record] = []
    large: list[Record] = []
    marked: list[Record] = []

    def mark(record: Record) -> Record:
        record.payload["marked"] = True
        return record

    pipeline = p.Pipeline(
        "fan",
        sources=[
            p.Source("file", file.Source(path=tmp_path / "in.jsonl", format="json")),
            p.Source("list", memory.Source(records=[{"n": n} for n in range(300, 500)])),
        ],
        destinations=[
            p.Destination("every", memory.Destination(into=every)),
            p.Destination("large", memory.Destination(into=large), when=lambda record: record.payload["n"] >= 250),
            p.Destination("marked", memory.Destination(into=marked), processors=[mark], after="list"),
        ],
    )

    state = await engine(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    assert [n for n in numbers(every) if n < 300] == list(range(300))
    assert [n for n in numbers(every) if n >= 300] == list(range(300, 500))
    assert sorted(numbers(large)) == list(range(250, 500))
    assert numbers(marked) == list(range(300, 500))
    assert all("marked" not in record.payload for record in every)
    assert all(record.payload["marked"] for record in marked)


def numbers(records: Sequence[Record]) -> list[int]:
    return [record.payload["n"] for record in records]


async def test_processors_may_be_async_by_batch_or_a_class(engine: Engine) -> None:
    out: list[Record] = []

    class Opened(Processor[Any]):
        async def open(self) -> None:
            self.ready = "yes"

        async def process(self, record: Record) -> Record:
            record.payload["opened"] = self.ready
            return record

    @processor(batch=True)
    def by_batch(batch: Batch) -> list[Record | Exception]:
        return [record if record.payload["id"] != 3 else ValueError("three") for record in batch]

    @processor
    async def later(record: Record) -> Record:
        await trio.lowlevel.checkpoint()
        record.payload["later"] = record.payload["id"] + 1
        return record

    pipeline = p.Pipeline(
        "kinds",
        sources=[p.Source("made", generator.Source(count=100, seed=1))],
        processors=[Opened(), by_batch, later],
        destinations=[p.Destination("out", memory.Destination(into=out))],
        dead_letters=p.DeadLetters("drop"),
    )

    state = await engine(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    assert [(record.payload["later"], record.payload["opened"]) for record in out] == [
        (n + 1, "yes") for n in range(100) if n != 3
    ]


async def test_a_threshold_of_dead_letters_stops_it_with_the_same_words(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(200))
    letters = p.DeadLetters(
        file.Destination(path=tmp_path / "dead.jsonl", format="json"), window_size=100, window_nack_threshold=5
    )
    store = MemoryStore()

    state = await engine(from_file(tmp_path, dead_letters=letters), store).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.code == "dead_letter.not_allowed"
    assert state.error.node == "doubled"
    # The sixth refused record, 41, is one too many: everything before it is settled and acked.
    assert [letter["record"]["payload"]["after"]["n"] for letter in read_lines(tmp_path / "dead.jsonl")] == [
        6, 13, 20, 27, 34
    ]  # fmt: skip


async def test_without_a_handler_the_first_refused_record_stops_it(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(20))

    state = await engine(from_file(tmp_path, dead_letters=p.DeadLetters("stop")), MemoryStore()).run()

    assert state.error is not None
    assert state.error.message == "doubled refused a record: ValueError: 6 is no good"


@pytest.mark.parametrize(("kind", "code"), [(FatalError, "run.fatal"), (TransientError, "run.transient")])
async def test_what_a_processor_raises_ends_the_run_as_it_says(
    tmp_path: Path, engine: Engine, kind: type[Exception], code: str
) -> None:
    write_lines(tmp_path / "in.jsonl", range(20))

    def fails(record: Record) -> Record:
        raise kind("the service is gone")

    pipeline = from_file(tmp_path)
    pipeline.processors = [p.Processor("fails", fails)]
    state = await engine(pipeline, MemoryStore()).run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node, state.error.message) == (code, "fails", "the service is gone")


async def test_lines_that_cannot_be_read_are_dead_letters_of_their_source(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(3))
    with (tmp_path / "in.jsonl").open("a") as lines:
        lines.write("not json\n")

    state = await engine(from_file(tmp_path), MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    [letter] = read_lines(tmp_path / "dead.jsonl")
    assert letter["node"] == "in"


async def test_a_missing_file_is_told_before_anything_is_read(tmp_path: Path, engine: Engine) -> None:
    state = await engine(from_file(tmp_path), MemoryStore()).run()

    assert state.error is not None
    assert state.error.message == f"there is no file {tmp_path / 'in.jsonl'}"


async def test_exactly_once_commits_output_and_progress_together(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(1000))
    store = MemoryStore()
    pipeline = from_file(tmp_path, delivery="exactly_once", transaction=Transaction(max_records=100))

    state = await engine(pipeline, store).run()

    assert state.status is Status.COMPLETED, state.error
    assert [row["n"] for row in read_lines(tmp_path / "out.jsonl")] == expected(range(1000))
    letters = [letter["record"]["payload"]["after"]["n"] for letter in read_lines(tmp_path / "dead.jsonl")]
    assert letters == refused(range(1000))


async def test_a_graceful_stop_delivers_what_was_read_and_the_next_run_the_rest(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(1500))
    store = MemoryStore()
    stopped: list[Supervisor] = []

    class Stopping(memory.Destination):
        async def write(self, batch: Batch) -> None:
            await super().write(batch)
            stopped[0].stop()

    out: list[Record] = []
    pipeline = from_file(tmp_path)
    pipeline.sources[0].settings = pipeline.sources[0].settings.model_copy(update={"window": 300})
    pipeline.destinations = [p.Destination("out", Stopping(into=out))]
    stopped.append(engine(pipeline, store))
    first = await stopped[0].run()
    count = len(out)
    pipeline.destinations = [p.Destination("out", memory.Destination(into=out))]
    second = await engine(pipeline, store).run()

    assert first.status is Status.STOPPED, first.error
    assert 0 < count < len(expected(range(1500)))
    assert second.status is Status.COMPLETED, second.error
    assert numbers(out) == expected(range(1500))


async def test_a_forceful_stop_ends_at_once_and_loses_nothing(tmp_path: Path, engine: Engine) -> None:
    write_lines(tmp_path / "in.jsonl", range(100))
    store = MemoryStore()
    marker = tmp_path / "begun"

    async def stuck(record: Record) -> Record:
        if not marker.exists():
            marker.touch()
            await trio.sleep_forever()
        return record

    pipeline = from_file(tmp_path)
    pipeline.processors = [p.Processor("stuck", stuck)]
    supervisor = engine(pipeline, store)
    with trio.fail_after(45):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            while not marker.exists():  # noqa: ASYNC110 - it is made by another process
                await trio.sleep(0.05)
            supervisor.force()
    again = await engine(pipeline, store).run()

    assert supervisor.state.status is Status.STOPPED
    assert again.status is Status.COMPLETED, again.error
    assert [row["n"] for row in read_lines(tmp_path / "out.jsonl")] == list(range(100))
