"""Parquet to Parquet, killed again and again: every row arrives once, and a reader never sees half a file."""

from collections import Counter
from pathlib import Path

import duckdb
import pytest
from killed_copies import killed_copies

from conduit_py.testing.crash import AT_RANDOM

RECORDS = 60_000
KILLS = 8
POINTS = [
    "writer.after_write",
    "transaction.before_stage",
    "transaction.before_commit",
    "transaction.after_commit",
    "transaction.after_apply",
]
PIPELINE = f"""
import os
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from conduit_connectors import parquet
from conduit_py import Destination, Pipeline, Rows, Source, processor

if not os.path.exists("in.parquet"):
    pq.write_table(pa.table({{"n": range({RECORDS})}}), "draft", row_group_size=7000)
    os.rename("draft", "in.parquet")


@processor(arrow=pa.schema([("n", pa.int64())]))
def double(table: pa.Table) -> Rows:
    odd = pc.bit_wise_and(table["n"], 1)
    return Rows(table.append_column("twice", pc.multiply(table["n"], 2)), keep=pc.equal(odd, 1))


pipeline = Pipeline(
    "copy",
    sources=[Source("in", parquet.Source(path="in.parquet"))],
    processors=[double],
    destinations=[Destination("out", parquet.Destination(path="out", rows_max=1500))],
    delivery="exactly_once",
)
"""


@pytest.mark.slow
def test_i4_i8_killed_again_and_again_every_row_is_there_once(tmp_path: Path) -> None:
    kills: Counter[str] = Counter()
    for directory, report in killed_copies(
        tmp_path,
        PIPELINE,
        "",
        kills=KILLS,
        points=POINTS,
        seconds_max=180,
        preloaded=["conduit_connectors.parquet"],
    ):
        kills += report.kills
        rows = duckdb.sql(f"SELECT n, twice FROM '{directory}/out/*.parquet' ORDER BY n").fetchall()
        assert rows == [(n, 2 * n) for n in range(1, RECORDS, 2)]
        assert not list(directory.glob("out/_conduit/*/*.parquet"))

    assert kills.total() >= KILLS
    assert AT_RANDOM in kills
