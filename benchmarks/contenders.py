"""The contenders, each a function that does one work and returns the number of records at its sink."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import trio

from benchmarks import journal
from benchmarks.workload import cents, dropped, raw
from conduit_py import Batch, Destination, Payload, Pipeline, Record, Rows, Source, processor, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore


def loop_w1(records: int, folder: Path) -> int:
    """The hand-written loop."""
    count = 0
    for number in range(records):
        order = orjson.loads(raw(number))
        order["cents"] = cents(order)
        if dropped(order):
            continue
        count += 1
    return count


def loop_w2(records: int, folder: Path) -> int:
    """The hand-written loop from file to file, without any durability."""
    count = 0
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        for line in source:
            order = orjson.loads(line)
            order["cents"] = cents(order)
            if dropped(order):
                continue
            out.write(orjson.dumps(order) + b"\n")
            count += 1
    return count


class GeneratedOptions(sdk.Options):
    """How many records to generate."""

    records: int


class Generated(sdk.SourceConnector[GeneratedOptions]):
    """The records of the work as raw JSON; the position is the number."""

    async def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1

    async def read(self, n: int) -> list[Record]:
        start, stop = self._next, min(self._next + n, self.options.records)
        if start == stop:
            raise sdk.EndOfSource
        self._next = stop
        return [Record(position=b"%d" % number, payload=Payload(after=raw(number))) for number in range(start, stop)]


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


def _conduit_w1(records: int, folder: Path, processors: list[Any], destinations: int = 1) -> int:
    counters: list[list[int]] = [[] for _ in range(destinations)]
    pipeline = Pipeline(
        "w1",
        sources=[Source("generated", Generated(records=records))],
        processors=processors,
        destinations=[Destination(f"count-{i}", Counting(counter=counter)) for i, counter in enumerate(counters)],
    )
    _run(pipeline, folder)
    totals = {sum(counter) for counter in counters}
    assert len(totals) == 1
    return totals.pop()


def conduit_w1(records: int, folder: Path) -> int:
    """Three per-record processors, default settings, positions durable in SQLite."""
    return _conduit_w1(records, folder, [parse, set_cents, drop])


def conduit_batch_w1(records: int, folder: Path) -> int:
    """One batch function instead of three per-record ones."""
    return _conduit_w1(records, folder, [all_in_one])


def conduit_arrow_w1(records: int, folder: Path) -> int:
    """An Arrow processor in place of two of the three."""
    # Imported here: the memory of the others is measured too.
    import pyarrow as pa
    import pyarrow.compute as pc

    @processor(arrow=pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    def columns(table: pa.Table) -> Rows:
        whole = pc.cast(pc.round(pc.multiply(table["amount"], 100)), pa.int64())
        tens = pc.multiply(pc.divide(table["id"], 10), 10)
        return Rows(table.append_column("cents", whole), keep=pc.not_equal(table["id"], tens))

    return _conduit_w1(records, folder, [parse, columns])


def conduit_w1x2(records: int, folder: Path) -> int:
    """W1 into two destinations."""
    return _conduit_w1(records, folder, [parse, set_cents, drop], destinations=2)


def _conduit_w2(records: int, folder: Path, processors: list[Any]) -> int:
    from conduit_connectors import file

    pipeline = Pipeline(
        "w2",
        sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
        processors=processors,
        destinations=[Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
    )
    _run(pipeline, folder)
    return sum(1 for _ in (folder / "out.jsonl").open("rb"))


def conduit_w2(records: int, folder: Path) -> int:
    """File to file with per-record processors; output fsynced and positions durable all the time."""
    return _conduit_w2(records, folder, [set_cents, drop])


def conduit_batch_w2(records: int, folder: Path) -> int:
    """The same with one batch function."""
    return _conduit_w2(records, folder, [all_in_one])


def _run(pipeline: Pipeline, folder: Path) -> None:
    async def main() -> None:
        async with await SqliteStore.open(folder / "state") as store:
            state = await Supervisor(pipeline, store).run()
            assert state.status is Status.COMPLETED, state

    trio.run(main)


def bytewax_w1(records: int, folder: Path) -> int:
    """bytewax at its best: batches of 1000, no recovery store."""
    counter: list[int] = []
    _bytewax(lambda: (raw(number) for number in range(records)), counter.append)
    return sum(counter)


def bytewax_w2(records: int, folder: Path) -> int:
    """bytewax from file to file: batches of 1000, no fsync, no recovery store."""
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        counter: list[int] = []

        def write(lines: list[bytes]) -> None:
            out.write(b"".join(lines))
            counter.append(len(lines))

        _bytewax(lambda: source, write, encode=lambda order: orjson.dumps(order) + b"\n")
    return sum(counter)


def _bytewax(
    items: Callable[[], Iterator[bytes]], sink: Callable[[Any], None], encode: Callable[[Any], bytes] | None = None
) -> None:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    class Partition(StatelessSourcePartition[bytes]):
        def __init__(self) -> None:
            self._items = iter(items())

        def next_batch(self) -> list[bytes]:
            batch = [item for _, item in zip(range(1000), self._items, strict=False)]
            if not batch:
                raise StopIteration
            return batch

    class Generated(DynamicSource[bytes]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            return Partition()

    class SinkPartition(StatelessSinkPartition[Any]):
        def write_batch(self, batch: list[Any]) -> None:
            sink(batch if encode else len(batch))

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> SinkPartition:
            return SinkPartition()

    def work(batch: list[bytes]) -> list[Any]:
        results: list[Any] = []
        for item in batch:
            order = orjson.loads(item)
            order["cents"] = cents(order)
            if not dropped(order):
                results.append(encode(order) if encode else order)
        return results

    flow = Dataflow("work")
    stream = op.input("in", flow, Generated())
    worked = op.flat_map_batch("work", stream, work)
    op.output("out", worked, Sink())
    run_main(flow)  # type: ignore[no-untyped-call]


WORKS: dict[str, dict[str, Callable[[int, Path], int]]] = {
    "W1": {
        "loop": loop_w1,
        "loop again": loop_w1,
        "conduit-py": conduit_w1,
        "conduit-py, batch function": conduit_batch_w1,
        "conduit-py, Arrow table": conduit_arrow_w1,
        "conduit-py, two destinations": conduit_w1x2,
        "bytewax": bytewax_w1,
    },
    "W2": {
        "loop": loop_w2,
        "loop again": loop_w2,
        "conduit-py": conduit_w2,
        "conduit-py, batch function": conduit_batch_w2,
        "bytewax": bytewax_w2,
    },
    **journal.WORKS,
}
