"""Objects to objects, killed again and again: every row arrives once, and a reader never sees half a file."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest
from s3_server import ACCESS_KEY, SECRET_KEY, BucketFolder
from warm_python import COMMAND, WarmPython

from conduit_py.testing.crash import run_with_kills

FILES, ROWS = 40, 250
KILLS, KILLS_MIN, COPIES_MAX = 6, 3, 10
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


def copy_killed(folder: Path, seed: int, place: str, endpoint: str) -> int:
    """Copy, killed again and again; return how often."""
    (folder / "copy.py").write_text(PIPELINE)
    environment = {"PLACE": place, "ENDPOINT": endpoint, "ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": SECRET_KEY}
    report = run_with_kills(
        [COMMAND, "run", "copy.py", "--state", "state"],
        kills_max=KILLS,
        points=POINTS,
        seed=seed,
        # The run is forked from a warm process, and soon over: a later moment would never come.
        delay_max_seconds=0.25,
        environment=os.environ | environment,
        directory=folder,
        popen=partial(WarmPython, preloaded=["conduit_connectors.objects", "pyarrow.parquet"]),
    )
    return report.kills.total()


def repeat_until_killed_enough(folder: Path, copy: Callable[[Path, int], int]) -> None:
    """A copy may be done before it was killed often enough: then it is made once more, elsewhere."""
    kills = 0
    for seed in range(COPIES_MAX):
        (folder / str(seed)).mkdir()
        kills += copy(folder / str(seed), seed)
        if kills >= KILLS_MIN:
            return
    pytest.fail(f"{COPIES_MAX} copies were killed only {kills} times")


def check_lake(folder: Path) -> None:
    rows = duckdb.sql(f"SELECT n, kind FROM read_parquet('{folder}/*/*.parquet', hive_partitioning=true) ORDER BY n")
    assert rows.fetchall() == [(n, f"k {n % ROWS % 3}") for n in range(FILES * ROWS)]


@pytest.mark.slow
def test_i4_i8_a_folder_killed_again_and_again_has_every_row_once(tmp_path: Path) -> None:
    def copy(folder: Path, seed: int) -> int:
        (folder / "in").mkdir()
        for number in range(FILES):
            (folder / "in" / f"{number:03d}.jsonl").write_bytes(content(number))
        kills = copy_killed(folder, seed, str(folder), "")

        check_lake(folder / "out")
        assert not list(folder.glob("out/_conduit/*/*.parquet"))
        assert len(list((folder / "done").iterdir())) == FILES
        assert list((folder / "in").iterdir()) == []
        return kills

    repeat_until_killed_enough(tmp_path, copy)


@pytest.mark.slow
def test_i4_i8_a_bucket_killed_again_and_again_has_every_row_once(tmp_path: Path, s3_server: str) -> None:
    def copy(folder: Path, seed: int) -> int:
        bucket = BucketFolder(s3_server)
        for number in range(FILES):
            bucket.put(f"in/{number:03d}.jsonl", content(number))
        kills = copy_killed(folder, seed, bucket.root, s3_server)

        for key in bucket.keys("out/kind="):
            path = folder / key.replace("%20", " ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bucket.get(key))
        check_lake(folder / "out")
        assert [key for key in bucket.keys("out/_conduit") if key.endswith(".parquet")] == []
        assert len(bucket.keys("done/")) == FILES
        assert bucket.keys("in/") == []
        return kills

    repeat_until_killed_enough(tmp_path, copy)
