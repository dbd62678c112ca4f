"""Objects to objects, killed again and again: every row arrives once, and a reader never sees half a file."""

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import duckdb
import pytest
from s3_server import ACCESS_KEY, SECRET_KEY, BucketFolder
from warm_python import COMMAND, WarmPython

from conduit_py.testing.crash import run_with_kills

FILES, ROWS = 40, 250
KILLS = 6
POINTS = [
    "writer.after_write",
    "transaction.before_stage",
    "transaction.before_commit",
    "transaction.after_commit",
    "transaction.after_apply",
]
PIPELINE = """
import os
from conduit_connectors import objects
from conduit_py import Destination, Pipeline, Source, TransactionLimits

keys = {}
if os.environ["PLACE"].startswith("s3"):
    keys = dict(
        s3_endpoint=os.environ["ENDPOINT"], s3_region="us-east-1",
        s3_access_key=os.environ["ACCESS_KEY"], s3_secret_key=os.environ["SECRET_KEY"],
    )
place = os.environ["PLACE"]
pipeline = Pipeline(
    "copy",
    sources=[Source("in", objects.Source(url=f"{place}/in/*.jsonl", after="move", move_to=f"{place}/done", **keys))],
    destinations=[
        Destination(
            "out",
            objects.Destination(
                url=f"{place}/out", format="parquet", partition_by=["kind"], rows_max=300,
                columns={"n": "int64", "kind": "string"}, **keys,
            ),
        )
    ],
    delivery="exactly_once",
    transaction=TransactionLimits(max_records=1500),
)
"""


def content(number: int) -> bytes:
    rows = [{"n": number * ROWS + row, "kind": f"k {row % 3}"} for row in range(ROWS)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def run(folder: Path, place: str, endpoint: str) -> Counter[str]:
    (folder / "copy.py").write_text(PIPELINE)
    environment = {"PLACE": place, "ENDPOINT": endpoint, "ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": SECRET_KEY}
    report = run_with_kills(
        [COMMAND, "run", "copy.py", "--state", "state"],
        kills_max=KILLS,
        points=POINTS,
        # The run is forked from a warm process, and soon over: a later moment would never come.
        delay_max_seconds=0.25,
        environment=os.environ | environment,
        directory=folder,
        popen=partial(WarmPython, preloaded=["conduit_connectors.objects", "pyarrow.parquet"]),
    )
    return report.kills


def check_lake(folder: Path) -> None:
    rows = duckdb.sql(f"SELECT n, kind FROM read_parquet('{folder}/*/*.parquet', hive_partitioning=true) ORDER BY n")
    assert rows.fetchall() == [(n, f"k {n % ROWS % 3}") for n in range(FILES * ROWS)]


@pytest.mark.slow
def test_i4_i8_a_folder_killed_again_and_again_has_every_row_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number:03d}.jsonl").write_bytes(content(number))
    kills = run(tmp_path, str(tmp_path), "")

    check_lake(tmp_path / "out")
    assert not list(tmp_path.glob("out/_conduit/*/*.parquet"))
    assert len(list((tmp_path / "done").iterdir())) == FILES
    assert list((tmp_path / "in").iterdir()) == []
    assert kills.total() >= 3


@pytest.mark.slow
def test_i4_i8_a_bucket_killed_again_and_again_has_every_row_once(tmp_path: Path, s3_server: str) -> None:
    bucket = BucketFolder(s3_server)
    for number in range(FILES):
        bucket.put(f"in/{number:03d}.jsonl", content(number))
    kills = run(tmp_path, bucket.root, s3_server)

    for key in bucket.keys("out/kind="):
        path = tmp_path / key.replace("%20", " ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.get(key))
    check_lake(tmp_path / "out")
    assert [key for key in bucket.keys("out/_conduit") if key.endswith(".parquet")] == []
    assert len(bucket.keys("done/")) == FILES
    assert bucket.keys("in/") == []
    assert kills.total() >= 3
