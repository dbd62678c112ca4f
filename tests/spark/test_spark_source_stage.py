"""A stage hands on the same rows with the same positions until all are acked, and never less without a word."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conduit_connectors.spark.positions import SnapshotPosition, decode, encode, staged_positions
from conduit_connectors.spark.spool import RowSpool, Segments

from conduit_py.errors import FatalError


def a_stage(folder: Path) -> RowSpool:
    """Of five rows in files of two, none and three."""
    (folder / "data").mkdir(parents=True)
    for number, rows in enumerate(([0, 1], [], [2, 3, 4])):
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), folder / "data" / f"part-{number}.parquet")
    stage = RowSpool(folder)
    stage.keep(Segments("s", [2, 0, 3]))
    return stage


def read(stage: RowSpool, n: int = 2) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while (rows := stage.read(n))[0]:
        assert len(rows[0]) <= n
        found += zip((row["n"] for row in rows[0]), rows[1], strict=True)
    return found


def position(text: bytes) -> SnapshotPosition:
    at = decode(text)
    assert isinstance(at, SnapshotPosition)
    return at


def test_every_row_follows_the_one_before_in_every_run(tmp_path: Path) -> None:
    rows = read(a_stage(tmp_path))

    assert [n for n, _ in rows] == [0, 1, 2, 3, 4]
    for index in range(4):
        again = RowSpool(tmp_path)
        again.seek(position(rows[index][1]))
        assert read(again, 100) == rows[index + 1 :]


@pytest.mark.parametrize("snapshot", ["0f-1", "-1", '50 % "of" %d-1'])
def test_positions_of_many_rows_are_those_of_each(snapshot: str) -> None:
    numbers = [0, 9, 10, 99_999]

    assert staged_positions(snapshot, 3, numbers) == [encode(SnapshotPosition(snapshot, 3, row)) for row in numbers]


@pytest.mark.parametrize("crashed_before_the_ack", [True, False])
def test_the_last_ack_lets_the_files_go(tmp_path: Path, crashed_before_the_ack: bool) -> None:
    stage = a_stage(tmp_path)
    *others, last = [position(at) for _, at in read(stage)]
    for at in others:
        stage.ack(at)
    kept = (tmp_path / "data").exists()
    # A position that is durable is acked, even if the process was killed before it could say so.
    if crashed_before_the_ack:
        RowSpool(tmp_path).seek(last)
    else:
        stage.ack(last)
    again = RowSpool(tmp_path)
    again.seek(last)

    assert kept
    assert not (tmp_path / "data").exists()
    assert read(again) == []


def test_a_position_that_was_set_back_behind_what_is_kept_is_reported(tmp_path: Path) -> None:
    stage = a_stage(tmp_path)
    first, *_, last = [position(at) for _, at in read(stage)]
    stage.ack(last)

    with pytest.raises(FatalError, match="follow segment 0, row 0 of s were acked, and are no longer kept"):
        RowSpool(tmp_path).seek(first)


def test_a_stage_without_rows_ends_at_once(tmp_path: Path) -> None:
    stage = RowSpool(tmp_path)
    stage.keep(Segments("s", [0, 0]))

    assert read(RowSpool(tmp_path)) == []


def test_a_damaged_stage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "segments.json").write_text('{"snapshot": ')

    with pytest.raises(FatalError, match=r"segments\.json is damaged"):
        RowSpool(tmp_path)
