"""W5: the orders of W2 in columns, from a Parquet file to Parquet files."""

import hashlib
from pathlib import Path
from typing import Any

import orjson

from benchmarks.pipelines import run_to_end
from benchmarks.work import CONTROL, LOOP, Contender, Count, Work, where_installed
from benchmarks.workload import raw
from conduit_py import Destination, Pipeline, Rows, Source, processor

ROWS = 10_000
"""Of a batch, and of a row group of the input."""
WINDOW = 400_000
"""A file of the pipeline has at most half as many rows."""


def write_parquet(records: int, folder: Path) -> None:
    """The file that W5 reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(folder / "in.parquet", _schema()) as writer:
        for start in range(0, records, ROWS):
            orders = [orjson.loads(raw(number)) for number in range(start, min(start + ROWS, records))]
            writer.write_table(pa.Table.from_pylist(orders, _schema()))


def arrow_loop(records: int, folder: Path) -> Count:
    """By hand with pyarrow, a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema().append(pa.field("cents", pa.int64()))
    with pq.ParquetWriter(_out(folder) / "0.parquet", schema) as writer:
        for batch in pq.ParquetFile(folder / "in.parquet").iter_batches(ROWS):
            table = pa.Table.from_batches([batch])
            whole, keep = _columns(table)
            writer.write_table(table.append_column("cents", whole).filter(keep))
    return _count_rows(folder)


def duckdb_w5(records: int, folder: Path) -> Count:
    """DuckDB's COPY, which uses all cores: compare its CPU."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT *, CAST(round(amount * 100) AS BIGINT) AS cents FROM '{folder / 'in.parquet'}' "
            f"WHERE id % 10 <> 0) TO '{_out(folder) / '0.parquet'}' (FORMAT parquet)"
        )
    return _count_rows(folder)


def polars_w5(records: int, folder: Path) -> Count:
    """A lazy scan of polars into a file, which uses all cores: compare its CPU."""
    import polars

    orders = polars.scan_parquet(folder / "in.parquet").filter(polars.col("id") % 10 != 0)
    whole = (polars.col("amount") * 100).round().cast(polars.Int64)
    orders.with_columns(cents=whole).sink_parquet(_out(folder) / "0.parquet")
    return _count_rows(folder)


def conduit_w5(records: int, folder: Path) -> Count:
    """Tables of a Parquet file, an Arrow processor, Parquet files; positions durable, files synced before the ack."""
    # Imported here: the memory of the others is measured too.
    from conduit_connectors import parquet

    return _run(folder, parquet.Destination(path=_out(folder)))


def conduit_w5_delta(records: int, folder: Path) -> Count:
    """The same into a Delta table."""
    import pyarrow as pa
    from conduit_connectors import delta
    from deltalake import write_deltalake

    write_deltalake(_out(folder), pa.schema([*_schema(), ("cents", pa.int64())]).empty_table())
    return _run(folder, delta.Destination(path=str(_out(folder))))


def _run(folder: Path, destination: Any) -> Count:
    import pyarrow as pa
    from conduit_connectors import parquet

    @processor(arrow=_schema())
    def columns(table: pa.Table) -> Rows:
        whole, keep = _columns(table)
        return Rows(table.append_column("cents", whole), keep=keep)

    source = parquet.Source(path=str(folder / "in.parquet"))
    pipeline = Pipeline(
        "w5",
        sources=[Source("in", source, batch_size=ROWS, window=WINDOW)],
        processors=[columns],
        destinations=[Destination("out", destination)],
    )
    run_to_end(pipeline, folder)
    return _count_rows(folder)


def digest_rows(folder: Path) -> str:
    """A digest of all rows in the order of their ids: writers of Parquet lay the same rows out in different bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [*_schema().names, "cents"]
    tables = [pq.read_table(path, columns=columns) for path in _files(folder)]
    digest = hashlib.sha256()
    for batch in pa.concat_tables(tables).sort_by("id").to_batches(max_chunksize=ROWS):
        digest.update(b"".join(orjson.dumps([row[name] for name in columns]) for row in batch.to_pylist()))
    return digest.hexdigest()


def _columns(table: Any) -> tuple[Any, Any]:
    """The field to set, and which rows stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tens = pc.multiply(pc.divide(table["id"], 10), 10)
    return pc.cast(pc.round(pc.multiply(table["amount"], 100)), pa.int64()), pc.not_equal(table["id"], tens)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        {"id": pa.int64(), "ts": pa.string(), "user": pa.string(), "amount": pa.float64()}
        | {"tags": pa.list_(pa.string()), "note": pa.string()}
    )


def _out(folder: Path) -> Path:
    (folder / "out").mkdir(exist_ok=True)
    return folder / "out"


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*.parquet"))


def _count_rows(folder: Path) -> Count:
    def count() -> int:
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(path).num_rows for path in _files(folder))

    return count


_CONTENDERS: dict[str, Contender] = {
    LOOP: arrow_loop,
    CONTROL: arrow_loop,
    "conduit-py, tables": conduit_w5,
    "conduit-py, tables into Delta": conduit_w5_delta,
}

W5 = Work(
    "W2 in columns, Parquet to Parquet; the loop is pyarrow's",
    _CONTENDERS | where_installed(DuckDB=("duckdb", duckdb_w5), polars=("polars", polars_w5)),
    write_parquet,
    digest_rows,
)
