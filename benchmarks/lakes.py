"""Rows into DuckDB and Iceberg exactly once, beside loops by hand on the same libraries.

    python -m benchmarks.lakes [--records N] [--rounds N]

What the figures mean: `benchmarks.against_loop`. Rows of five columns come from a file of JSON lines, or from a Parquet
file. Both sides commit as many rows at once. The loop writes Arrow tables, as its library wants them, and its place in
the file in the same commit; it looks at no value. Ours also refuses what a column would change, and resumes.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from conduit_connectors import duckdb as duckdb_connector
from conduit_connectors import file, iceberg, parquet
from pyiceberg.catalog import load_catalog

import conduit_py
from benchmarks.against_loop import compare
from conduit_py import Destination, Pipeline, Source, TransactionLimits

IN_A_COMMIT = 50_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("paid", pa.bool_()),
        ("note", pa.string()),
    ]
)
CREATE = "CREATE TABLE orders (id BIGINT, customer VARCHAR, amount DOUBLE, paid BOOLEAN, note VARCHAR)"
_LIMITS = TransactionLimits(max_records=IN_A_COMMIT, max_seconds=60)


class LakeBench:
    """The input, and a new target for each measurement."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._records = records
        rows = [
            {"id": n, "customer": f"c-{n % 5000}", "amount": n % 10000 / 100, "paid": n % 3 == 0, "note": f"order {n}"}
            for n in range(records)
        ]
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / "in.parquet", row_group_size=20_000)

    def lines_loop(self) -> None:
        decoder = msgspec.json.Decoder(dict[str, Any])
        with open(self._folder / "in.jsonl", "rb") as lines:
            rows = (decoder.decode(line) for line in lines)
            tables = iter(lambda: list(islice(rows, 5_000)), [])
            self._fill_duckdb(pa.Table.from_pylist(some, SCHEMA) for some in tables)

    def parquet_loop(self) -> None:
        opened = pq.ParquetFile(self._folder / "in.parquet")
        self._fill_duckdb(pa.Table.from_batches([batch]) for batch in opened.iter_batches(10_000))

    def iceberg_loop(self) -> None:
        table = self._new_iceberg("loop")
        opened, waiting, count = pq.ParquetFile(self._folder / "in.parquet"), list[pa.RecordBatch](), 0
        for batch in opened.iter_batches(10_000):
            waiting.append(batch)
            count += batch.num_rows
            if count % IN_A_COMMIT == 0 or count == self._records:
                table.append(pa.Table.from_batches(waiting), snapshot_properties={"place": str(count)})
                waiting = []

    def lines(self) -> None:
        source = file.Source(path=self._folder / "in.jsonl", format="json")
        self._run(source, duckdb_connector.Destination(path=self._new_duckdb(), table="orders"))

    def parquet(self) -> None:
        source = parquet.Source(path=str(self._folder / "in.parquet"))
        self._run(source, duckdb_connector.Destination(path=self._new_duckdb(), table="orders"))

    def iceberg(self) -> None:
        self._new_iceberg("ours")
        source = parquet.Source(path=str(self._folder / "in.parquet"))
        self._run(source, iceberg.Destination(table="db.ours", catalog=self._catalog()))

    def _run(self, source: Any, destination: Any) -> None:
        pipeline = Pipeline(
            "bench",
            sources=[Source("in", source, window=2 * IN_A_COMMIT, batch_size=5_000)],
            destinations=[Destination("out", destination)],
            delivery="exactly_once",
            transaction=_LIMITS,
        )
        state = self._folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        outcome = conduit_py.run(pipeline, state=state)
        assert outcome.error is None, outcome.error

    def _fill_duckdb(self, tables: Iterator[pa.Table]) -> None:
        with duckdb.connect(str(self._new_duckdb())) as connection:
            connection.execute("CREATE TABLE place (n BIGINT)")
            connection.execute("INSERT INTO place VALUES (0)")
            connection.execute("BEGIN")
            count = 0
            for rows in tables:
                connection.execute("INSERT INTO orders SELECT * FROM rows")
                count += rows.num_rows
                if count % IN_A_COMMIT == 0:
                    connection.execute("UPDATE place SET n = ?", [count])
                    connection.execute("COMMIT")
                    connection.execute("BEGIN")
            connection.execute("UPDATE place SET n = ?", [count])
            connection.execute("COMMIT")
            found = connection.execute("SELECT count(*) FROM orders").fetchone()
            assert found == (self._records,), found

    def _new_duckdb(self) -> Path:
        path = self._folder / "out.duckdb"
        for each in self._folder.glob("out.duckdb*"):
            each.unlink()
        with duckdb.connect(str(path)) as connection:
            connection.execute(CREATE)
        return path

    def _catalog(self) -> dict[str, str]:
        (self._folder / "lake").mkdir(exist_ok=True)
        return {
            "type": "sql",
            "uri": f"sqlite:///{self._folder}/catalog.db",
            "warehouse": f"file://{self._folder}/lake",
        }

    def _new_iceberg(self, name: str) -> Any:
        catalog = load_catalog("default", **self._catalog())
        catalog.create_namespace_if_not_exists("db")
        if catalog.table_exists(f"db.{name}"):
            catalog.drop_table(f"db.{name}")
        shutil.rmtree(self._folder / "lake" / "db" / name, ignore_errors=True)
        return catalog.create_table(f"db.{name}", SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = LakeBench(Path(folder), arguments.records)
        print(f"{arguments.records} records, ratios of {arguments.rounds} rounds: median (lowest to highest)")
        for name, loop, ours in (
            ("JSON lines to DuckDB", bench.lines_loop, bench.lines),
            ("Parquet to DuckDB", bench.parquet_loop, bench.parquet),
            ("Parquet to Iceberg", bench.iceberg_loop, bench.iceberg),
        ):
            compare(name, loop, ours, records=arguments.records, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
