"""Other engines on the same works, each at its best: bytewax, DuckDB and polars."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from benchmarks.work import Count, count_lines
from benchmarks.workload import cents, dropped, raw

BATCH = 1000
EPOCH = timedelta(seconds=1)

Steps: TypeAlias = Callable[[Any, Callable[[Any], bytes] | None], Any]
"""Adds the work to a stream of bytewax, with an encoder for the results if they are written."""

_COLUMNS = "{id: 'BIGINT', ts: 'VARCHAR', \"user\": 'VARCHAR', amount: 'DOUBLE', tags: 'VARCHAR[]', note: 'VARCHAR'}"


def by_batch(stream: Any, encode: Callable[[Any], bytes] | None) -> Any:
    """The whole work as one function, which takes and returns a list: the quickest form."""
    import bytewax.operators as op

    def work(batch: list[bytes]) -> list[Any]:
        results: list[Any] = []
        for item in batch:
            order = orjson.loads(item)
            order["cents"] = cents(order)
            if not dropped(order):
                results.append(encode(order) if encode else order)
        return results

    return op.flat_map_batch("work", stream, work)


def by_record(stream: Any, encode: Callable[[Any], bytes] | None) -> Any:
    """A step for each thing that is done to a record, as its tutorials have it."""
    import bytewax.operators as op

    def set_cents(order: dict[str, Any]) -> dict[str, Any]:
        order["cents"] = cents(order)
        return order

    parsed = op.map("parse", stream, orjson.loads)
    kept = op.filter("drop", op.map("set_cents", parsed, set_cents), lambda order: not dropped(order))
    return op.map("encode", kept, encode) if encode else kept


def bytewax_w1(records: int, folder: Path, steps: Steps = by_batch) -> Count:
    """bytewax with batches of 1000 and no recovery store."""
    counter: list[int] = []
    _bytewax(map(raw, range(records)), [lambda orders: counter.append(len(orders))], steps=steps)
    return lambda: sum(counter)


def bytewax_w1x2(records: int, folder: Path) -> Count:
    """bytewax into two sinks."""
    counters: tuple[list[int], list[int]] = ([], [])
    sinks = [lambda orders: counters[0].append(len(orders)), lambda orders: counters[1].append(len(orders))]
    _bytewax(map(raw, range(records)), sinks)
    first, second = map(sum, counters)
    assert first == second
    return lambda: first


def bytewax_w2(records: int, folder: Path, steps: Steps = by_batch) -> Count:
    """bytewax from file to file: no fsync, no recovery store."""
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:
        _bytewax(source, [lambda lines: out.write(b"".join(lines))], encode=_line, steps=steps)
    return count_lines(folder / "out.jsonl")


def bytewax_w3(records: int, folder: Path) -> Count:
    """bytewax with a recovery store, an epoch a second, and a sink that syncs every second."""
    synced_at = time.monotonic()
    with (folder / "in.jsonl").open("rb") as source, (folder / "out.jsonl").open("wb") as out:

        def write(lines: list[bytes]) -> None:
            nonlocal synced_at
            out.write(b"".join(lines))
            if time.monotonic() - synced_at >= EPOCH.total_seconds():
                out.flush()
                os.fdatasync(out.fileno())
                synced_at = time.monotonic()

        _bytewax(source, [write], encode=_line, recovery=folder / "recovery")
        out.flush()
        os.fdatasync(out.fileno())
    return count_lines(folder / "out.jsonl")


def duckdb_w2(records: int, folder: Path) -> Count:
    """DuckDB's COPY, which uses all cores: compare its CPU."""
    import duckdb

    read = f"read_json('{folder / 'in.jsonl'}', format='newline_delimited', columns={_COLUMNS})"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT *, CAST(round(amount * 100) AS BIGINT) AS cents FROM {read} WHERE id % 10 <> 0) "
            f"TO '{folder / 'out.jsonl'}' (FORMAT json)"
        )
    return count_lines(folder / "out.jsonl")


def polars_w2(records: int, folder: Path) -> Count:
    """A lazy scan of polars into a file, which uses all cores: compare its CPU."""
    import polars

    orders = polars.scan_ndjson(folder / "in.jsonl", schema=_polars_schema(polars))
    kept = orders.filter(polars.col("id") % 10 != 0)
    kept.with_columns(cents=(polars.col("amount") * 100).round().cast(polars.Int64)).sink_ndjson(folder / "out.jsonl")
    return count_lines(folder / "out.jsonl")


def _polars_schema(polars: Any) -> dict[str, Any]:
    text = polars.String
    return {
        "id": polars.Int64, "ts": text, "user": text, "amount": polars.Float64, "tags": polars.List(text), "note": text
    }  # fmt: skip


def _line(order: dict[str, Any]) -> bytes:
    return orjson.dumps(order) + b"\n"


def _bytewax(
    items: Iterator[bytes],
    sinks: Sequence[Callable[[list[Any]], object]],
    encode: Callable[[Any], bytes] | None = None,
    recovery: Path | None = None,
    steps: Steps = by_batch,
) -> None:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    flow = Dataflow("work")
    worked = steps(op.input("in", flow, _bytewax_source(items)), encode)
    for number, sink in enumerate(sinks):
        op.output(f"out-{number}", worked, _bytewax_sink(sink))
    if recovery is None:
        run_main(flow)
        return
    recovery.mkdir()
    init_db_dir(recovery, 1)
    run_main(flow, epoch_interval=EPOCH, recovery_config=RecoveryConfig(str(recovery)))


def _bytewax_source(items: Iterator[bytes]) -> Any:
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

    class Partition(StatefulSourcePartition[bytes, int]):
        read = 0

        def next_batch(self) -> list[bytes]:
            batch = list(islice(items, BATCH))
            if not batch:
                raise StopIteration
            self.read += len(batch)
            return batch

        def snapshot(self) -> int:
            return self.read

    class Generated(FixedPartitionedSource[bytes, int]):
        def list_parts(self) -> list[str]:
            return ["all"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
            return Partition()

    return Generated()


def _bytewax_sink(sink: Callable[[list[Any]], object]) -> Any:
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Partition(StatelessSinkPartition[Any]):
        def write_batch(self, batch: list[Any]) -> None:
            sink(batch)

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            return Partition()

    return Sink()
