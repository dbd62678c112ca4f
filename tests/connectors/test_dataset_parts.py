"""Parts of a dataset that tasks stage: the invariants M1 to M7 of decision 59, in a folder and in a bucket."""

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import objects, parquet
from conduit_connectors.objects.staged_parts import owned_folder
from s3_server import BucketFolder
from staged_lives import live_and_die

from conduit_py.record import Record
from conduit_py.sdk import ManyWriterDestination, PartId, PieceRefused, StageCleared, TransientError

WEEK = 7 * 24 * 3600


class Dataset(Protocol):
    """A place that the driver and tasks write to, and what a reader and an operator see there."""

    def declare(self, **options: Any) -> objects.Destination: ...

    def rows(self) -> list[Any]: ...

    def hidden(self) -> list[str]: ...

    def change(self, name: str, content: bytes | None) -> None: ...


class FolderDataset:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def declare(self, **options: Any) -> objects.Destination:
        return objects.Destination(url=str(self.path), **options)

    def rows(self) -> list[Any]:
        files = sorted((path for path in self.path.rglob("part-*")), key=lambda path: path.name)
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]

    def hidden(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.glob("_conduit/*/*"))

    def change(self, name: str, content: bytes | None) -> None:
        if content is None:
            (self.path / name).unlink()
        else:
            (self.path / name).write_bytes(content)


class BucketDataset:
    """A folder of a bucket."""

    def __init__(self, bucket: BucketFolder) -> None:
        self._bucket = bucket

    def declare(self, **options: Any) -> objects.Destination:
        return objects.Destination(url=self._bucket.url("out"), **self._bucket.options, **options)

    def rows(self) -> list[Any]:
        keys = sorted(key for key in self._bucket.keys("out/") if "/_conduit/" not in key)
        return [json.loads(line) for key in keys for line in self._bucket.get(key).splitlines()]

    def hidden(self) -> list[str]:
        return [key.removeprefix("out/") for key in self._bucket.keys("out/_conduit/")]

    def change(self, name: str, content: bytes | None) -> None:
        if content is None:
            self._bucket.remove(f"out/{name}")
        else:
            self._bucket.put(f"out/{name}", content)


@pytest.fixture(params=["folder", "bucket"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    if request.param == "folder":
        return FolderDataset(tmp_path / "out")
    return BucketDataset(BucketFolder(request.getfixturevalue("s3_server")))


def driver(
    dataset: Dataset, fence: int | None = None, intents: Sequence[bytes] = (), **options: Any
) -> objects.Destination:
    made = dataset.declare(**options).fresh()
    made.open()
    if fence is not None:
        made.begin("p", fence, intents)
    return made


def attempt(declared: ManyWriterDestination[Any], grant: bytes, number: int, *rows: Any, source: int = 0) -> bytes:
    """One attempt of a task at a part, with what it returns to the driver."""
    task = declared.fresh()
    try:
        task.open_part(grant, PartId(source, number))
        assert not task.prepare(batch_of(*rows))
        return task.prepared()
    finally:
        task.discard_part()


def commit(live: objects.Destination) -> None:
    intent = live.stage()
    assert intent is not None
    live.apply(intent)


def n(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def test_m1_only_what_a_committed_intent_names_is_visible(dataset: Dataset) -> None:
    live = driver(dataset, 1)
    grant = live.grant()
    taken, untaken = attempt(live, grant, 0, *n(1, 2)), attempt(live, grant, 1, *n(3))
    assert untaken
    live.take([taken])
    intent = live.stage()

    assert intent is not None
    assert dataset.rows() == []
    live.apply(intent)
    assert dataset.rows() == n(1, 2)
    live.apply(intent)
    assert dataset.rows() == n(1, 2)
    live.teardown()
    assert dataset.rows() == n(1, 2)


def test_m1_outside_of_exactly_once_a_flush_makes_visible_what_was_taken(dataset: Dataset) -> None:
    live = driver(dataset)
    grant = live.grant()
    attempt(live, grant, 0, *n(0))
    live.take([attempt(live, grant, 0, *n(1)), attempt(live, grant, 1, *n(2))])
    assert dataset.rows() == []
    live.flush()

    assert dataset.rows() == n(1, 2)
    live.take([attempt(live, grant, 2, *n(3))])
    live.flush()
    live.teardown()
    assert dataset.rows() == n(1, 2, 3)
    assert dataset.hidden() == []


def test_m2_of_all_attempts_at_a_part_one_is_committed_and_no_other_is_left(dataset: Dataset) -> None:
    live = driver(dataset, 1)
    grant = live.grant()
    dead = live.fresh()
    dead.open_part(grant, PartId(0, 0))
    dead.prepare(batch_of(*n(1)))  # it is killed before it stages
    first, second = attempt(live, grant, 0, *n(1)), attempt(live, grant, 0, *n(1))
    ahead = attempt(live, grant, 1, *n(2))
    other = attempt(live, grant, 0, *n(9), source=1)
    assert first != second
    live.take([second])
    commit(live)

    assert dataset.rows() == n(1)
    # What is ahead of the parts that were taken may still be taken.
    live.take([ahead, other])
    late = attempt(live, grant, 0, *n(1))  # a zombie
    assert late
    commit(live)
    dead.discard_part()
    live.teardown()
    assert dataset.rows() == n(1, 2, 9)
    assert dataset.hidden() == []


def test_m3_a_new_run_ends_the_tasks_of_the_one_before(dataset: Dataset) -> None:
    old = driver(dataset, 1)
    grant = old.grant()
    attempt(old, grant, 0, *n(1))
    zombie = old.fresh()
    zombie.open_part(grant, PartId(0, 1))
    zombie.prepare(batch_of(*n(2)))
    new = driver(dataset, 2)
    assert [name for name in dataset.hidden() if name.endswith(".jsonl") and "000000000001" not in name] == []
    assert zombie.prepared()  # it ends after the next run began
    zombie.discard_part()
    with pytest.raises(PieceRefused, match="does not reach the place that the driver writes to"):
        attempt(old, grant, 2, *n(3))
    new.take([attempt(new, new.grant(), 0, *n(1))])
    commit(new)

    assert dataset.rows() == n(1)
    old.teardown()
    new.teardown()
    assert dataset.rows() == n(1)
    assert dataset.hidden() == []


@pytest.mark.parametrize("content", [None, b'{"n":'])
@pytest.mark.parametrize("exactly_once", [True, False])
def test_m4_a_part_that_is_not_there_as_it_was_staged_is_not_committed(
    dataset: Dataset, content: bytes | None, exactly_once: bool
) -> None:
    live = driver(dataset, 1 if exactly_once else None)
    live.take([attempt(live, live.grant(), 0, *n(1))])
    [name] = [name for name in dataset.hidden() if name.endswith(".jsonl")]
    dataset.change(name, content)

    with pytest.raises(TransientError, match="is not what a task has staged there"):
        live.stage() if exactly_once else live.flush()
    with pytest.raises(TransientError, match="failed before"):
        live.stage() if exactly_once else live.flush()
    live.teardown()
    assert dataset.rows() == []
    assert dataset.hidden() == []


def test_m5_what_was_committed_survives_the_end_of_its_run_and_nothing_else_does(dataset: Dataset) -> None:
    dead = driver(dataset, 1)
    grant = dead.grant()
    dead.take([attempt(dead, grant, 0, *n(1))])
    attempt(dead, grant, 1, *n(2))
    intent = dead.stage()
    assert intent is not None
    dead.teardown()  # after the commit, and before it was applied
    next_one = driver(dataset, 2, [intent])

    assert dataset.rows() == n(1)
    assert dataset.hidden() == []
    next_one.teardown()


def test_m5_what_a_run_without_fences_has_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    dataset = FolderDataset(tmp_path / "out")
    dead = driver(dataset)
    attempt(dead, dead.grant(), 0, *n(1))
    alive = driver(dataset)
    alive.take([attempt(alive, alive.grant(), 0, *n(2))])
    [old, marker] = [tmp_path / "out" / name for name in dataset.hidden() if _run(dead.grant()) in name]
    for path in (old, marker):
        os.utime(path, (time.time() - WEEK + 600,) * 2)
    driver(dataset).grant()
    assert old.exists()
    for path in (old, marker):
        os.utime(path, (time.time() - WEEK - 600,) * 2)
    driver(dataset).grant()

    assert not old.parent.exists()
    alive.flush()
    assert dataset.rows() == n(2)


def test_m5_a_command_removes_what_no_commit_can_name_any_more(dataset: Dataset) -> None:
    dead = driver(dataset)
    attempt(dead, dead.grant(), 0, *n(1))
    new = driver(dataset, 2)
    new.take([attempt(new, new.grant(), 0, *n(3))])
    # Of a zombie, after the run began that removed everything of its fence.
    dataset.change(f"_conduit/{owned_folder('p')}/000000000001-{'0' * 16}.0.0-{'0' * 16}.jsonl", b"")

    assert dataset.declare().clear_staged(3600, None) == StageCleared(1, 4)
    assert dataset.declare().clear_staged(-3600, None) == StageCleared(2, 2)
    commit(new)
    assert dataset.rows() == n(3)
    assert dataset.declare().clear_staged(-3600, "p") == StageCleared(1, 0)
    assert dataset.hidden() == []


@pytest.mark.parametrize("by_tasks", [True, False])
def test_m5_a_command_leaves_what_a_new_state_has_staged_after_one_was_lost(dataset: Dataset, by_tasks: bool) -> None:
    """Its fences begin at one again. What the lost state left has higher ones, and so do its zombies."""
    lost = driver(dataset, 7)
    attempt(lost, lost.grant(), 0, *n(1))
    zombie = lost.fresh()
    zombie.open_part(lost.grant(), PartId(0, 1))
    zombie.prepare(batch_of(*n(2)))
    live = driver(dataset, 1)
    if by_tasks:
        live.take([attempt(live, live.grant(), 0, *n(3))])
    else:
        live.write(batch_of(*n(3)))
    intent = live.stage()
    assert intent is not None
    assert zombie.prepared()
    dataset.declare().clear_staged(3600, None)
    live.teardown()  # after the commit, and before it was applied
    dataset.declare().clear_staged(3600, None)
    driver(dataset, 2, [intent]).teardown()

    assert dataset.rows() == n(3)
    # What the lost state may still name is left to who says that it is gone.
    dataset.declare().clear_staged(-3600, "p")
    assert dataset.hidden() == []


def test_m5_a_command_removes_what_a_zombie_wrote_after_the_last_run_ended(dataset: Dataset) -> None:
    live = driver(dataset, 1)
    zombie = live.fresh()
    zombie.open_part(live.grant(), PartId(0, 0))
    zombie.prepare(batch_of(*n(1)))
    live.take([attempt(live, live.grant(), 0, *n(1))])
    commit(live)
    live.teardown()
    assert zombie.prepared()  # the pipeline is completed, and never runs again
    zombie.discard_part()

    # In a folder the end of the run has removed the file that was open.
    left = len(dataset.hidden())
    assert dataset.declare().clear_staged(3600, None) == StageCleared(0, left)
    assert dataset.declare().clear_staged(-3600, None) == StageCleared(left, 0)
    assert (dataset.hidden(), dataset.rows()) == ([], n(1))


def test_m6_the_order_of_names_is_that_of_the_parts_whoever_was_first(dataset: Dataset) -> None:
    live = driver(dataset, 1, rows_max=2)
    grant = live.grant()
    parts = {number: attempt(live, grant, number, *n(*range(5 * number, 5 * number + 5))) for number in (2, 0, 3, 1)}
    live.write(batch_of(*n(-1)))
    live.take([parts[0], parts[1]])
    live.take([parts[2]])
    commit(live)
    live.take([parts[3]])
    commit(live)

    assert dataset.rows() == n(*range(-1, 20))


def test_m7_a_task_refuses_what_one_machine_refuses(tmp_path: Path) -> None:
    columns = {"n": "int64", "at": "timestamp[us]"}
    batch = batch_of({"n": 1}, {"n": 1.5}, Record.of(b"raw"), {"n": 2, "more": 1}, {"n": 3})
    here = parquet.Destination(path=tmp_path / "here", columns=columns).fresh()
    here.open()
    refused = here.write(batch)
    here.flush()
    live = parquet.Destination(path=tmp_path / "there", columns=columns).fresh()
    live.open()
    task = live.fresh()
    task.open_part(live.grant(), PartId(0, 0))

    assert task.prepare(batch) == refused
    assert sorted(refused) == [1, 2, 3]
    live.take([task.prepared()])
    live.flush()
    live.teardown()
    assert pq.read_table(tmp_path / "there").equals(pq.read_table(tmp_path / "here"))


def test_a_manifest_is_small_whatever_records_name(dataset: Dataset) -> None:
    live = driver(dataset, 1, partition_by=["n"])
    rows = [{"n": number, "text": "x"} for number in range(120)]
    manifest = attempt(live, live.grant(), 0, *rows)
    assert len(manifest) < 200
    live.take([manifest])
    commit(live)
    live.teardown()

    assert dataset.rows() == [{"text": "x"}] * 120
    assert dataset.hidden() == []


def test_a_place_that_a_task_does_not_reach_is_refused_and_not_written_to(tmp_path: Path) -> None:
    """As on a cluster whose machines have folders of the same name, which are not the same folders."""
    live = objects.Destination(url=str(tmp_path / "driver")).fresh()
    live.open()

    with pytest.raises(PieceRefused, match="does not reach the place that the driver writes to"):
        attempt(objects.Destination(url=str(tmp_path / "executor")), live.grant(), 0, *n(1))
    assert not (tmp_path / "executor").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"compression": "gzip", "partition_by": ["n"]}, None),
        ({"format": "parquet", "columns": {"n": "int64"}}, None),
        ({"format": "avro", "columns": {"n": "int64"}, "on_new_field": "ignore"}, None),
        ({"format": "parquet"}, "its columns are those of the first records: declare `columns`"),
        ({"format": "parquet", "columns": {"n": "int64"}, "on_type": "widen"}, "records may change its columns"),
        ({"format": "csv", "columns": ["n"]}, "its columns are those of the first file"),
        ({"url": "sftp://host/out"}, "only one process may write through sftp://"),
    ],
)
def test_it_says_why_tasks_cannot_stage(options: Any, reason: str | None) -> None:
    found = objects.Destination(**{"url": "s3://bucket/out", **options}).stages_remotely(exactly_once=True)

    assert found == reason if reason is None else reason in (found or "")


@pytest.mark.parametrize("seed", range(20))
def test_m1_to_m5_hold_for_any_sequence_of_attempts_commits_and_deaths(tmp_path: Path, seed: int) -> None:
    dataset = FolderDataset(tmp_path / "out")

    committed = live_and_die(
        random.Random(seed),
        lambda fence, intents: driver(dataset, fence, intents),
        lambda: [row["n"] for row in dataset.rows()],
        lambda: dataset.declare().clear_staged(-3600, None),
    )

    assert dataset.rows() == n(*committed)
    assert dataset.hidden() == []


def _run(grant: bytes) -> str:
    _, _, run = msgspec.msgpack.decode(grant)
    return str(run)


def test_a_task_gives_no_dictionary_to_a_column_that_was_not_worth_it_in_the_task_before(tmp_path: Path) -> None:
    declared = parquet.Destination(path=tmp_path / "out", columns={"n": "int64", "city": "string"})
    opened = declared.fresh()
    opened.open()
    grant = opened.grant()
    for number in range(2):
        attempt(declared, grant, number, *({"n": n, "city": "Bonn"} for n in range(3000)))

    files = sorted(tmp_path.glob("out/_conduit/*/*.0.?-*.parquet"))
    groups = [pq.ParquetFile(file).metadata.row_group(0) for file in files]
    columns = [[group.column(number) for number in range(group.num_columns)] for group in groups]
    assert [{each.path_in_schema for each in some if each.has_dictionary_page} for some in columns] == [
        {"n", "city"},
        {"city"},
    ]
    opened.teardown()
