"""conduit-py as a contender, in each style of writing processors, with default settings and everything on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio
from conduit_connectors import file

import conduit_py
from benchmarks.work import Contender, Count, count_lines
from benchmarks.workload import cents, dropped, raw
from conduit_py import Batch, Destination, Payload, Pipeline, Record, Rows, Source, Status, processor, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.sqlite.store import SqliteStore

Delivery = Literal["at_least_once", "exactly_once"]


class GeneratedOptions(sdk.Options):
    """How many records to generate, and how."""

    records: int
    make: Any = raw
    at_once: int | None = None
    """How many a read returns at most; None: as many as are asked for."""


class Generated(sdk.SourceConnector[GeneratedOptions]):
    """The records of the work as raw JSON; the position is the number."""

    async def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1

    async def read(self, n: int) -> list[Record]:
        numbers, make = self._take(n), self.options.make
        return [Record(position=b"%d" % number, payload=Payload(after=make(number))) for number in numbers]

    def _take(self, n: int) -> range:
        """The numbers of the next records."""
        first = self._next
        self._next = min(first + min(n, self.options.at_once or n), self.options.records)
        if first == self._next:
            raise sdk.EndOfSource
        return range(first, self._next)


class CountOptions(sdk.Options):
    """Where to count."""

    counter: Any


class Counting(sdk.DestinationConnector[CountOptions]):
    """Counts the records it is given."""

    async def write(self, batch: Batch) -> None:
        self.options.counter.append(len(batch))


decode = msgspec.json.Decoder().decode


@processor
def parse(record: Record) -> Record:
    record.payload.after = decode(record.payload.after)  # type: ignore[arg-type]
    return record


@processor
def set_cents(record: Record) -> Record:
    record.payload["cents"] = cents(record.payload.after)  # type: ignore[arg-type]
    return record


@processor
def drop(record: Record) -> Record | None:
    return None if dropped(record.payload.after) else record  # type: ignore[arg-type]


@processor(batch=True)
def all_in_one(batch: Batch) -> list[Record | None]:
    results: list[Record | None] = []
    for record in batch.records:
        payload = record.payload
        order = payload.after
        if isinstance(order, bytes):
            order = payload.after = decode(order)
        order["cents"] = cents(order)  # type: ignore[index, arg-type]
        results.append(None if dropped(order) else record)  # type: ignore[arg-type]
    return results


@dataclass(frozen=True)
class Style:
    """One way to write the processors: what their functions take and return."""

    parse: Any
    set_cents: Any
    drop: Any

    @property
    def from_text(self) -> list[Any]:
        """The processors of W1, whose source gives bytes."""
        return [self.parse, self.set_cents, self.drop]

    @property
    def from_fields(self) -> list[Any]:
        """The processors of W2, whose source parses."""
        return [self.set_cents, self.drop]


STYLES = {"records": Style(parse, set_cents, drop)}


def by_style(contender: Callable[[Style], Contender], suffix: str = "") -> dict[str, Contender]:
    """A contender for each style, under its name in the tables."""
    return {f"conduit-py, {name}{suffix}": contender(style) for name, style in STYLES.items()}


def generated_into_counters(processors: Sequence[Any], destinations: int = 1, **source: Any) -> Contender:
    """W1 and its relatives, with positions durable in SQLite. `source` are further options of Generated."""

    def run(records: int, folder: Path) -> Count:
        counters: list[list[int]] = [[] for _ in range(destinations)]
        run_to_end(_counting_pipeline("w1", records, processors, counters, **source), folder)
        return lambda: _count_each(counters)

    return run


def many_pipelines(processors: Sequence[Any], pipelines: int) -> Contender:
    """The records of W1 shared between pipelines that run at once in one process with one state, as `serve` has it."""

    def run(records: int, folder: Path) -> Count:
        counters: list[list[int]] = [[] for _ in range(pipelines)]
        shares = [records // pipelines + (number < records % pipelines) for number in range(pipelines)]
        trio.run(_run_together, folder, processors, shares, counters)
        return lambda: sum(map(sum, counters))

    return run


def file_to_file(processors: Sequence[Any], delivery: Delivery = "at_least_once") -> Contender:
    """W2 and its relatives: every line synced before it is acked, positions durable in SQLite."""

    def run(records: int, folder: Path) -> Count:
        pipeline = Pipeline(
            "w2",
            sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
            processors=list(processors),
            destinations=[Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
            delivery=delivery,
        )
        run_to_end(pipeline, folder)
        return count_lines(folder / "out.jsonl")

    return run


def arrow_w1(records: int, folder: Path) -> Count:
    """W1 with an Arrow processor in place of two of the three."""
    # Imported here: the memory of the others is measured too.
    import pyarrow as pa
    import pyarrow.compute as pc

    @processor(arrow=pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    def columns(table: pa.Table) -> Rows:
        whole = pc.cast(pc.round(pc.multiply(table["amount"], 100)), pa.int64())
        tens = pc.multiply(pc.divide(table["id"], 10), 10)
        return Rows(table.append_column("cents", whole), keep=pc.not_equal(table["id"], tens))

    return generated_into_counters([parse, columns])(records, folder)


def run_to_end(pipeline: Pipeline, folder: Path) -> None:
    outcome = conduit_py.run(pipeline, state=folder / "state")
    assert outcome.status is Status.COMPLETED, outcome


async def _run_together(folder: Path, processors: Sequence[Any], shares: list[int], counters: list[list[int]]) -> None:
    async with await SqliteStore.open(folder / "state") as store, trio.open_nursery() as nursery:
        for number, (share, counter) in enumerate(zip(shares, counters, strict=True)):
            pipeline = _counting_pipeline(f"p{number}", share, processors, [counter])
            nursery.start_soon(Supervisor(pipeline, store).run)


def _counting_pipeline(
    id: str, records: int, processors: Sequence[Any], counters: list[list[int]], **source: Any
) -> Pipeline:
    return Pipeline(
        id,
        sources=[Source("generated", Generated(records=records, **source))],
        processors=list(processors),
        destinations=[Destination(f"count-{i}", Counting(counter=counter)) for i, counter in enumerate(counters)],
    )


def _count_each(counters: list[list[int]]) -> int:
    totals = {sum(counter) for counter in counters}
    assert len(totals) == 1, f"the destinations got different numbers of records: {totals}"
    return totals.pop()
