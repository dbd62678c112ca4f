"""The spark connectors against what they are made of: Spark's own calls with the same rows, in the same session."""

import gc
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import trio
from conduit_connectors import spark
from pyspark.sql import SparkSession

from benchmarks.spark_engine import to_end
from benchmarks.spark_measure import Line, Meter, ratio, rounds
from conduit_py import Batch, Destination, Pipeline, Record, Source, sdk
from conduit_py.batch import Span
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Payload
from conduit_py.spark.session.shared_session import SparkOptions

BATCH, READ = 50_000, 4096
"""How many rows a job of Spark has, and a batch of records."""
WARM_UP = 4
"""Rounds until Java has compiled what is used."""
COLUMNS = "id BIGINT, user STRING, ts STRING, amount DOUBLE, note STRING"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("user", pa.string()), ("ts", pa.string()), ("amount", pa.float64()), ("note", pa.string())]
)


class Ready:
    """What a source gives. As an option it is only a name: options are looked through when a pipeline starts."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.records = [Record(position=b"%d" % number, payload=Payload(after=row)) for number, row in enumerate(rows)]


class GivenOptions(sdk.Options):
    """The records to give."""

    given: Any


class Given(sdk.SourceConnector[GivenOptions]):
    """Records that are there already; the position is the number."""

    blocking = False

    def open(self, position: bytes | None) -> None:
        self._next = 0

    def read(self, n: int) -> list[Record]:
        records: list[Record] = self.options.given.records[self._next : self._next + n]
        if not records:
            raise sdk.EndOfSource
        self._next += len(records)
        return records


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": f"user-{number % 1000}",
        "ts": f"2026-11-16T05:11:39.{number % 1_000_000:06d}Z",
        "amount": number % 500 + 0.25,
        "note": "x" * 64,
    }


def batches_of(rows: list[dict[str, Any]], first: int) -> list[Batch]:
    """Rows as the runtime hands them to a destination."""
    found = []
    for start in range(0, len(rows), READ):
        taken = rows[start : start + READ]
        span = Span("lake", "rows", first + start, [b"%d" % (first + start + i) for i in range(len(taken))])
        records = [
            Record(position=at, payload=Payload(after=row)) for at, row in zip(span.positions, taken, strict=True)
        ]
        found.append(Batch(span, records, range(span.first, span.first + len(taken))))
    return found


def destination_lines(session: SparkSession, options: SparkOptions, folder: Path, count: int, turns: int) -> list[Line]:
    """Into parquet: rows → Arrow → createDataFrame → write, by hand, by the connector and by a whole pipeline."""
    rows, meter = [row(number) for number in range(count)], Meter()
    chunks = [rows[start : start + BATCH] for start in range(0, count, BATCH)]
    tables = [pa.Table.from_pylist(chunk, schema=SCHEMA) for chunk in chunks]
    batches = [batches_of(chunk, BATCH * place) for place, chunk in enumerate(chunks)]
    ready = Ready(rows)
    # What everybody is given is not to be looked through for garbage while they are measured.
    gc.freeze()
    raw, out = folder / "raw", folder / "lake"

    def by_hand(tables: Sequence[pa.Table]) -> None:
        shutil.rmtree(raw, ignore_errors=True)
        for table in tables:
            session.createDataFrame(table).write.mode("append").parquet(str(raw))

    def from_rows() -> None:
        by_hand([pa.Table.from_pylist(chunk, schema=SCHEMA) for chunk in chunks])

    taken = rounds(
        {
            "tables": lambda: meter.used(partial(by_hand, tables)),
            "tables again": lambda: meter.used(partial(by_hand, tables)),
            "rows": lambda: meter.used(from_rows),
            "connector": lambda: meter.used(partial(write_directly, batches, folder / "direct", options)),
            "pipeline": lambda: meter.used(partial(write, ready, out, options)),
        },
        turns,
        warm_up=WARM_UP,
    )
    assert counted(raw) == counted(out) == counted(folder / "direct") == count, "all have written every row"
    hand = "createDataFrame().write"
    return [
        Line(f"{hand} again ÷ once", ratio(taken, "seconds", "tables", "tables again")),
        *(
            Line(
                f"spark.Destination, {name} ÷ {hand}, tables {made}", ratio(taken, "seconds", against, which), least=0.9
            )
            for which, name in (("connector", "connector alone"), ("pipeline", "in a pipeline"))
            for against, made in (("tables", "ready"), ("rows", "of rows"))
        ),
    ]


def write_directly(batches: Sequence[Sequence[Batch]], out: Path, options: SparkOptions) -> None:
    """As the runtime calls it: batches are written, and beside that the fate of each is collected."""
    shutil.rmtree(out, ignore_errors=True)
    connector, answered = destination(out, options).fresh(), 0
    connector.open()
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(write_all, connector, batches)
        try:
            while answered < sum(len(batch) for job in batches for batch in job):
                answered += sum(len(each) for each in connector.answers() if isinstance(each, Batch))
            written.result()
        finally:
            trio.run(connector.teardown)


def write_all(connector: spark.Destination, batches: Sequence[Sequence[Batch]]) -> None:
    for job in batches:
        for batch in job:
            assert connector.write(batch) is None, "nothing is refused"
    connector.finish()


def destination(out: Path, options: SparkOptions) -> spark.Destination:
    return spark.Destination(path=str(out), columns=COLUMNS, rows_max=BATCH, master=options.master, conf=options.conf)


def write(ready: Ready, out: Path, options: SparkOptions) -> None:
    """Through a whole pipeline of one machine, with its state, manifests and syncs."""
    shutil.rmtree(out, ignore_errors=True)
    state = out.with_suffix(".state")
    shutil.rmtree(state, ignore_errors=True)
    pipeline = Pipeline(
        "lake",
        sources=[Source("rows", Given(given=ready), window=4 * BATCH, batch_size=READ)],
        destinations=[Destination("lake", destination(out, options))],
    )

    trio.run(to_end, pipeline, state, Supervisor)


def source_lines(session: SparkSession, options: SparkOptions, folder: Path, count: int, turns: int) -> list[Line]:
    """Out of parquet: a snapshot that is staged and read as records, against `toArrow`."""
    table, meter, stage = folder / "table", Meter(), folder / "stage"
    pq.write_to_dataset(pa.Table.from_pylist([row(number) for number in range(count)], schema=SCHEMA), table)

    def arrow() -> pa.Table:
        return session.read.parquet(str(table)).toArrow()

    def snapshot() -> None:
        shutil.rmtree(stage, ignore_errors=True)
        assert read(table, stage, options) == count

    def staged() -> None:
        shutil.rmtree(stage, ignore_errors=True)
        assert read_staged(table, stage, options) == count

    taken = rounds(
        {
            "arrow": lambda: meter.used(arrow),
            "arrow again": lambda: meter.used(arrow),
            "rows": lambda: meter.used(lambda: arrow().to_pylist()),
            "staged": lambda: meter.used(staged),
            "source": lambda: meter.used(snapshot),
        },
        turns,
        warm_up=WARM_UP,
    )
    return [
        Line("toArrow again ÷ toArrow", ratio(taken, "seconds", "arrow", "arrow again")),
        Line(
            "spark.Source snapshot (records out) ÷ toArrow().to_pylist() (rows out)",
            ratio(taken, "seconds", "rows", "source"),
            least=0.8,
        ),
        Line(
            "spark.Source snapshot, staged durably (Arrow out) ÷ toArrow() (Arrow out)",
            ratio(taken, "seconds", "arrow", "staged"),
            least=0.8,
        ),
        Line("spark.Source snapshot (records out) ÷ toArrow() (Arrow out)", ratio(taken, "seconds", "arrow", "source")),
    ]


def read_staged(table: Path, stage: Path, options: SparkOptions) -> int:
    """How many rows a snapshot of the table has, all of them read from its stage as Arrow and not made into records."""
    source = opened(table, stage, options)
    try:
        return sum(len(pq.ParquetFile(path).read()) for path in stage.rglob("part-*.parquet"))
    finally:
        trio.run(source.teardown)


def opened(table: Path, stage: Path, options: SparkOptions) -> spark.Source:
    source = spark.Source(
        format="parquet", path=str(table), stage=stage, master=options.master, conf=options.conf
    ).fresh()
    source.open(None)
    return source


def read(table: Path, stage: Path, options: SparkOptions) -> int:
    """How many records a snapshot of the table has, all of them read."""
    source, count = opened(table, stage, options), 0
    try:
        while True:
            count += len(source.read(READ))
    except sdk.EndOfSource:
        return count
    finally:
        trio.run(source.teardown)


def counted(folder: Path) -> int:
    files = [path for path in folder.rglob("*.parquet") if "_conduit" not in path.parts]
    return sum(pq.read_metadata(path).num_rows for path in files)
