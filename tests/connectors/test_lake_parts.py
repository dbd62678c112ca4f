"""Files of a Delta or an Iceberg table that tasks stage: the invariants of decision 59, with the commits of a lake."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors import delta, iceberg
from conduit_connectors.delta.adopted_files import move_files
from conduit_connectors.delta.destination import StagedCommit
from conduit_connectors.iceberg.commits import TableIntent
from conduit_connectors.lake_parts import LakeDestination
from deltalake import DeltaTable
from lake_tables import iceberg_table
from pyiceberg.catalog import load_catalog
from s3_server import ACCESS_KEY, SECRET_KEY, BucketFolder
from staged_lakes import COLUMNS, DeltaLake, IcebergLake, Lake, attempt, commit, data_files, driver, hidden, n, parts
from staged_lives import live_and_die

from conduit_py.record import Record
from conduit_py.sdk import PartId, PieceRefused, StageCleared, TransientError

SUPPORT = str(Path(__file__).parents[1] / "support")
WEEK = 7 * 24 * 3600


@pytest.fixture(params=[DeltaLake, IcebergLake])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made: Lake = request.param(tmp_path)
    return made


def test_m1_only_what_a_committed_intent_names_is_visible_and_once(lake: Lake) -> None:
    live = driver(lake, 1)
    grant = live.grant()
    taken, untaken = attempt(live, grant, 0, *n(1, 2)), attempt(live, grant, 1, *n(3))
    before = lake.commits()
    live.take([taken])
    intent = live.stage()

    assert isinstance(intent, bytes)
    assert untaken
    assert lake.numbers() == []
    live.apply(intent)
    assert lake.numbers() == [1, 2]
    live.apply(intent)
    assert lake.numbers() == [1, 2]
    assert lake.commits() == before + 1
    live.teardown()
    assert (lake.numbers(), hidden(lake), len(data_files(lake))) == ([1, 2], [], 1)


def test_m1_outside_of_exactly_once_a_flush_makes_visible_what_was_taken(lake: Lake) -> None:
    live = driver(lake)
    grant = live.grant()
    attempt(live, grant, 0, *n(0))
    live.take([attempt(live, grant, 0, *n(1)), attempt(live, grant, 1, *n(2))])
    assert lake.numbers() == []
    live.flush()

    assert lake.numbers() == [1, 2]
    live.write(batch_of(*n(3)))
    live.take([attempt(live, grant, 2, *n(4))])
    live.flush()
    live.teardown()
    assert (lake.numbers(), hidden(lake)) == ([1, 2, 3, 4], [])


def test_m2_of_all_attempts_at_a_part_one_is_committed_and_no_other_is_left(lake: Lake) -> None:
    live = driver(lake, 1)
    grant = live.grant()
    first, second = attempt(live, grant, 0, *n(1)), attempt(live, grant, 0, *n(1))
    ahead = attempt(live, grant, 1, *n(2))
    assert first != second
    live.take([second])
    commit(live)

    assert lake.numbers() == [1]
    # What is ahead of the parts that were taken may still be taken.
    live.take([ahead])
    assert attempt(live, grant, 0, *n(1))  # a zombie
    commit(live)
    live.teardown()
    assert (lake.numbers(), hidden(lake), len(data_files(lake))) == ([1, 2], [], 2)


def test_m3_a_new_run_ends_the_tasks_of_the_one_before(lake: Lake) -> None:
    old = driver(lake, 1)
    grant = old.grant()
    attempt(old, grant, 0, *n(1))
    zombie = old.fresh()
    zombie.open_part(grant, PartId(0, 1))
    zombie.prepare(batch_of(*n(2)))
    new = driver(lake, 2)
    assert hidden(lake) == []
    assert zombie.prepared()  # it ends after the next run began
    zombie.discard_part()
    with pytest.raises(PieceRefused, match="does not reach the place that the driver writes to"):
        attempt(old, grant, 2, *n(3))
    new.take([attempt(new, new.grant(), 0, *n(1))])
    commit(new)
    old.teardown()
    new.teardown()

    assert (lake.numbers(), hidden(lake)) == ([1], [])


@pytest.mark.parametrize("content", [None, b"PAR1"])
def test_m4_a_part_that_is_not_there_as_it_was_staged_is_not_committed(lake: Lake, content: bytes | None) -> None:
    live = driver(lake, 1)
    live.take([attempt(live, live.grant(), 0, *n(1))])
    [file] = parts(lake)
    file.unlink() if content is None else file.write_bytes(content)

    with pytest.raises(TransientError, match="is not what a task has staged there"):
        live.stage()
    live.teardown()
    assert (lake.numbers(), hidden(lake)) == ([], [])


def test_m5_what_was_committed_survives_the_end_of_its_run_and_nothing_else_does(lake: Lake) -> None:
    dead = driver(lake, 1)
    grant = dead.grant()
    dead.take([attempt(dead, grant, 0, *n(1))])
    attempt(dead, grant, 1, *n(2))
    intent = dead.stage()
    assert isinstance(intent, bytes)
    dead.teardown()  # after the commit, and before it was applied
    next_one = driver(lake, 2, [intent])

    assert (lake.numbers(), hidden(lake)) == ([1], [])
    next_one.apply(intent)
    next_one.teardown()
    assert lake.numbers() == [1]


def test_m5_an_intent_is_applied_also_if_its_files_were_moved_and_not_committed(lake: Lake) -> None:
    """A driver that was killed between the last move and the commit of the table."""
    dead = driver(lake, 1)
    grant = dead.grant()
    dead.take([attempt(dead, grant, 0, *n(1)), attempt(dead, grant, 1, *n(2))])
    intent = dead.stage()
    assert isinstance(intent, bytes)
    _move_files_only(dead, intent)
    assert lake.numbers() == []
    next_one = driver(lake, 2, [intent])
    next_one.teardown()

    assert (lake.numbers(), hidden(lake), len(data_files(lake))) == ([1, 2], [], 2)


def _move_files_only(dead: Any, intent: bytes) -> None:
    if isinstance(dead, delta.Destination):
        move_files(dead._files, msgspec.json.decode(intent, type=StagedCommit).adopted)
    else:
        dead._commits.move(msgspec.msgpack.decode(intent, type=TableIntent).moved)


def test_m5_what_a_run_without_fences_has_left_is_removed_when_it_is_old(lake: Lake) -> None:
    dead = driver(lake)
    attempt(dead, dead.grant(), 0, *n(1))
    left = hidden(lake)
    for path in left:
        os.utime(path, (time.time() - WEEK - 600,) * 2)
    alive = driver(lake)
    alive.take([attempt(alive, alive.grant(), 0, *n(2))])
    alive.flush()
    alive.teardown()

    assert len(left) == 2
    assert (lake.numbers(), hidden(lake)) == ([2], [])


def test_m7_a_task_refuses_what_one_machine_refuses(lake: Lake) -> None:
    batch = batch_of({"n": 1}, {"n": 1.5}, Record.of(b"raw"), {"n": 2, "more": 1}, {"n": 3})
    live = driver(lake)
    task = live.fresh()
    task.open_part(live.grant(), PartId(0, 0))
    refused = task.prepare(batch)

    assert sorted(refused) == [1, 2, 3]
    assert live.write(batch) == refused
    live.take([task.prepared()])
    live.flush()
    live.teardown()
    assert lake.numbers() == [1, 1, 3, 3]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("partition_by", [[], ["n"]])
def test_m1_to_m5_hold_for_any_sequence_of_attempts_commits_and_deaths(
    lake: Lake, partition_by: list[str], seed: int
) -> None:
    committed = live_and_die(
        random.Random(seed),
        lambda fence, intents: driver(lake, fence, intents, partition_by=partition_by),
        lake.numbers,
        lambda: lake.declare().clear_staged(-3600, None),
    )

    assert lake.numbers() == committed
    assert hidden(lake) == []


def test_a_task_that_fails_leaves_no_file(lake: Lake) -> None:
    live = driver(lake, 1, rows_max=1)
    task = live.fresh()
    task.open_part(live.grant(), PartId(0, 0))
    task.prepare(batch_of(*n(1)))
    assert parts(lake)
    task.discard_part()

    assert parts(lake) == []
    live.teardown()


KILLED = """
import resource, signal, sys
from builders import batch_of
from conduit_connectors import delta
from conduit_py.sdk import PartId

task = delta.Destination(path=sys.argv[1]).fresh()
task.open_part(bytes.fromhex(sys.argv[2]), PartId(0, 1))
task.prepare(batch_of(*({"n": n, "name": f"{n * n:x}"} for n in range(20_000))))
# The kernel ends the process when the file gets larger than this.
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
task.prepared()
"""


def test_what_a_task_was_killed_in_the_middle_of_is_removed_too(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    live = driver(lake, fence=1)
    arguments = [str(lake.folder), live.grant().hex()]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=os.environ | {"PYTHONPATH": SUPPORT})
    left = parts(lake)
    driver(lake, fence=2).grant()

    assert killed.returncode == -signal.SIGXFSZ
    assert len(left) == 1
    assert parts(lake) == []


def test_a_manifest_is_small_however_many_files_there_are(lake: Lake) -> None:
    live = driver(lake, 1, rows_max=1)
    task = live.fresh()
    task.open_part(live.grant(), PartId(0, 0))
    count = 70 if isinstance(lake, DeltaLake) else 30
    for number in range(count):
        task.prepare(batch_of(*n(number)))
    manifest = task.prepared()
    task.discard_part()
    live.take([manifest])
    commit(live)
    live.teardown()

    assert len(manifest) < 200
    assert (lake.numbers(), hidden(lake)) == (list(range(count)), [])


def test_rows_of_the_driver_and_of_tasks_are_one_commit(lake: Lake) -> None:
    """Dead letters that are replayed are written by the driver."""
    live = driver(lake, 1)
    before = lake.commits()
    live.write(batch_of(*n(0)))
    live.take([attempt(live, live.grant(), 0, *n(1))])
    commit(live)
    live.teardown()

    assert (lake.numbers(), lake.commits(), hidden(lake)) == ([0, 1], before + 1, [])


def test_a_command_removes_what_no_commit_can_name_any_more(lake: Lake) -> None:
    """What runs without an owner have left, by age; of owners what is below their newest fence, or all of it."""
    dead = driver(lake)
    attempt(dead, dead.grant(), 0, *n(1))
    old = driver(lake, 1)
    zombie = old.fresh()
    zombie.open_part(old.grant(), PartId(0, 0))
    zombie.prepare(batch_of(*n(2)))
    new = driver(lake, 2)
    needed = attempt(new, new.grant(), 0, *n(3))
    assert zombie.prepared()

    assert lake.declare().clear_staged(3600, None) == StageCleared(1, 4)
    assert lake.declare().clear_staged(0, None) == StageCleared(2, 2)
    new.take([needed])
    commit(new)
    assert lake.numbers() == [3]
    assert attempt(new, new.grant(), 1, *n(4))
    assert lake.declare().clear_staged(3600, "p") == StageCleared(0, 2)
    assert lake.declare().clear_staged(0, "another") == StageCleared(0, 2)
    assert lake.declare().clear_staged(0, "p") == StageCleared(2, 0)
    assert hidden(lake) == []


def test_a_command_creates_no_table(lake: Lake) -> None:
    assert lake.declare().clear_staged(0, None) == StageCleared()
    assert [path for path in lake.folder.rglob("*") if path.suffix == ".json"] == []


@pytest.mark.parametrize(
    ("lake", "options", "reason"),
    [
        (DeltaLake, {}, None),
        (DeltaLake, {"partition_by": ["n"]}, None),
        (DeltaLake, {"columns": {"n": "double"}, "partition_by": ["n"]}, "the driver has to divide the rows by n"),
        (DeltaLake, {"on_new_field": "add"}, "records may change its columns"),
        (IcebergLake, {"partition_by": ["n"]}, None),
        (IcebergLake, {"mode": "upsert"}, "the last row of a key"),
        (IcebergLake, {"on_type": "widen"}, "records may change its columns"),
    ],
    indirect=["lake"],
)
def test_it_says_why_tasks_cannot_stage(lake: Lake, options: Any, reason: str | None) -> None:
    found = lake.declare(**options).stages_remotely(exactly_once=True)

    assert found is None if reason is None else reason in (found or "")


def test_the_files_of_a_delta_table_tell_what_they_hold(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    live = driver(lake, 1)
    live.take([attempt(live, live.grant(), 0, *n(3, 1, 2), {"n": None, "name": "x" * 100})])
    commit(live)
    live.teardown()
    [found] = pa.table(DeltaTable(lake.folder).get_add_actions(flatten=True)).to_pylist()

    assert (found["num_records"], found["min.n"], found["max.n"]) == (4, 1, 3)
    assert (found["null_count.n"], found.get("max.name")) == (1, None)


def test_rules_of_a_delta_table_hold_for_rows_of_tasks(tmp_path: Path) -> None:
    """Its files are read and written by the library, which enforces them."""
    lake = DeltaLake(tmp_path)
    driver(lake).teardown()
    DeltaTable(lake.folder).alter.add_constraint({"positive": "n > 0"})
    live = driver(lake, 1)
    live.take([attempt(live, live.grant(), 0, *n(1, 2))])
    commit(live)
    live.take([attempt(live, live.grant(), 1, *n(-1))])

    with pytest.raises(Exception, match="rows failed validation"):
        commit(live)
    live.teardown()
    assert lake.numbers() == [1, 2]


def test_partitions_of_an_iceberg_table_are_written_by_tasks(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    live = driver(lake, 1, partition_by=["name"])
    live.take([attempt(live, live.grant(), 0, *n(1, 2, 2))])
    commit(live)
    live.teardown()
    files = iceberg_table(tmp_path).inspect.files().to_pylist()

    assert lake.numbers() == [1, 2, 2]
    assert sorted(file["partition"]["name"] for file in files) == ["order 1", "order 2"]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_a_store_of_objects_are_staged_too(kind: str, request: pytest.FixtureRequest) -> None:
    """A store moves a file by a copy, has no folders, and is reached by what comes with the grant."""
    declared: LakeDestination[Any]
    if kind == "delta":
        bucket = BucketFolder(request.getfixturevalue("s3_server"))
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "aws_region": "us-east-1"}
        store = keys | {"aws_endpoint_url": bucket.options["s3_endpoint"], "aws_allow_http": "true"}
        declared = delta.Destination(path=bucket.url("a table"), columns=COLUMNS, storage=store)
    else:
        catalog = request.getfixturevalue("rest_catalog")
        declared = iceberg.Destination(table=f"staged.t{secrets.token_hex(4)}", catalog=catalog, columns=COLUMNS)
    dead = declared.fresh()
    dead.open()
    dead.begin("p", 1, [])
    grant = dead.grant()
    attempt(declared, grant, 0, *n(1))
    dead.take([attempt(declared, grant, 0, *n(1)), attempt(declared, grant, 1, *n(2))])
    intent = dead.stage()
    assert isinstance(intent, bytes)
    live = declared.fresh()
    live.open()
    live.begin("p", 2, [intent])
    with pytest.raises(PieceRefused, match="does not reach"):
        attempt(declared, grant, 2, *n(3))
    live.take([attempt(declared, live.grant(), 0, *n(3))])
    commit(live)

    # The grant of the run is left.
    assert declared.fresh().clear_staged(-3600, None) == StageCleared(0, 1)
    live.teardown()
    assert declared.fresh().clear_staged(-3600, None) == StageCleared()
    reader: Any = declared
    if kind == "delta":
        rows = DeltaTable(reader.options.path, storage_options=store).to_pyarrow_table()["n"].to_pylist()
    else:
        rows = load_catalog("default", **catalog).load_table(reader.options.table).scan().to_arrow()["n"].to_pylist()
    assert sorted(rows) == [1, 2, 3]
