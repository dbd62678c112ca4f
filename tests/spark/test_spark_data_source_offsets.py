"""Where streams of format("conduit") are: what an offset stands for comes again the same for each reader."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file, generator, memory

from conduit_py import sdk
from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk.source import NothingYet
from conduit_py.spark.datasource import streams
from conduit_py.spark.datasource.open_source import read_all
from conduit_py.spark.datasource.streams import BEGINNING, DriverStream, Offset, SplitStream, decode_rows

SIZE = 2**40


class Queue(sdk.SourceConnector[sdk.Options]):
    """Numbers below `there`, and a note of everything that was acked and of where it was opened."""

    def __init__(self, there: int) -> None:
        super().__init__()
        self.there = there
        self.acked: list[int] = []
        self.opened: list[int] = []
        self.created = 0

    def fresh(self) -> "Queue":
        return self

    def on_created(self) -> None:
        self.created += 1

    def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) + 1
        self.opened.append(self._next)

    def read(self, n: int) -> list[Record]:
        numbers = range(self._next, min(self._next + n, self.there))
        if not numbers:
            raise NothingYet
        self._next = numbers.stop
        return [Record.of(b"%d" % number, position=b"%d" % number) for number in numbers]

    def ack(self, positions: Sequence[bytes]) -> None:
        self.acked += map(int, positions)


def again(offset: Offset) -> Offset:
    """As it comes back from Spark's checkpoint."""
    return Offset.parse(json.loads(json.dumps(offset.to_json())))


def numbers(part: bytes) -> list[int]:
    return [int(row[5] or b"") for row in decode_rows(part)]


def test_a_batch_has_at_most_as_many_rows_and_about_as_many_bytes_as_asked_for() -> None:
    with closing(DriverStream(memory.Source(records=[b"x" * 1000] * 10_000))) as way:
        by_rows = way.latest(BEGINNING, 1500, SIZE, 5)
        by_size = way.latest(by_rows, 10_000, 100_000, 5)
        rest = way.latest(by_size, 10_000, SIZE, 5)
        nothing = way.latest(rest, 10_000, SIZE, 5)

    assert by_rows.rows == 1500
    # A step is 1024 rows, and one is enough for that size.
    assert by_size.rows == 1024
    assert by_rows.rows + by_size.rows + rest.rows == 10_000
    assert nothing == rest


def test_asked_twice_for_what_follows_it_says_the_same_and_reads_once() -> None:
    source = Queue(100)
    with closing(DriverStream(source)) as way:
        first = way.latest(BEGINNING, 30, SIZE, 5)
        source.there = 200
        same = way.latest(BEGINNING, 30, SIZE, 5)

        assert same == first
        assert numbers(way.part(BEGINNING, first)) == list(range(30))
    assert source.opened == [0]


def test_a_batch_of_a_former_run_is_read_again_up_to_the_same_record() -> None:
    source = Queue(100)
    with closing(DriverStream(source)) as way:
        first = way.latest(BEGINNING, 30, SIZE, 5)
        second = way.latest(first, 30, SIZE, 5)
    source.there = 1000
    with closing(DriverStream(source)) as way:
        part = way.part(again(first), again(second))
        third = way.latest(again(second), 5, SIZE, 5)

        assert numbers(part) == list(range(30, 60))
        assert numbers(way.part(second, third)) == list(range(60, 65))
    # Once for each run: the batch was read again and reading went on from there.
    assert source.opened == [0, 30]
    assert source.created == 1


@pytest.mark.parametrize("there", [0, 20, 30])
def test_a_source_that_has_lost_records_of_a_batch_is_an_error(there: int) -> None:
    records = [b"%d" % number for number in range(100)]
    with closing(DriverStream(memory.Source(records=records))) as way:
        first = way.latest(BEGINNING, 30, SIZE, 5)
        end = way.latest(first, 30, SIZE, 5)
    left = memory.Source(records=records[: 30 + there - 1])
    with closing(DriverStream(left)) as way, pytest.raises(FatalError) as lost:
        way.part(first, end)

    assert f"there were 30 records up to {end.position!r}" in lost.value.message
    assert "checkpointLocation" in str(lost.value.suggestion)


def test_acks_come_in_order_once_and_only_for_what_spark_has_committed() -> None:
    source = Queue(100)
    with closing(DriverStream(source)) as way:
        offsets = [BEGINNING]
        for _ in range(4):
            offsets.append(way.latest(offsets[-1], 10, SIZE, 5))
        assert source.acked == []
        way.commit(again(offsets[1]))
        assert source.acked == list(range(10))
        way.commit(again(offsets[3]))
        way.commit(again(offsets[3]))
        assert source.acked == list(range(30))
    with closing(DriverStream(source)) as way:
        way.latest(offsets[4], 10, SIZE, 5)
        # Of the former run: the source was opened after it, which says the same.
        way.commit(again(offsets[4]))

    assert source.acked == list(range(30))
    assert source.opened == [0, 40]


def lines(path: Path, start: int, stop: int) -> None:
    with path.open("a") as stream:
        stream.writelines(f"{number}\n" for number in range(start, stop))


def read(source: sdk.SourceConnector[Any], offset: Offset) -> list[bytes]:
    return [each.record.payload.after for part in offset.split for each in read_all(source.fresh(), part)]  # type: ignore[misc]


def test_parts_of_a_batch_are_in_its_offset_and_the_next_run_goes_on_after_them(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines(path, 0, 1000)
    source = file.Source(path=path, format="lines")
    with closing(SplitStream(source)) as way:
        first = way.latest(BEGINNING, 600)
        assert way.latest(BEGINNING, 600) == first
        second = way.latest(first, 600)
    lines(path, 1000, 1200)
    with closing(SplitStream(source)) as way:
        rest = way.latest(again(second), SIZE)
        nothing = way.latest(rest, SIZE)

    got = read(source, again(first)) + read(source, again(second)) + read(source, again(rest))
    assert [int(line) for line in got] == list(range(1200))
    assert nothing == rest


def test_large_input_is_many_parts() -> None:
    source = generator.Source(count=300_000)
    with closing(SplitStream(source)) as way:
        end = way.latest(BEGINNING, SIZE)

    assert len(end.split) == -(-300_000 * 128 // streams.STREAM_PART_SIZE)


def test_a_stream_goes_on_when_it_is_read_in_the_other_way(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines(path, 0, 1000)
    source = file.Source(path=path, format="lines")
    with closing(SplitStream(source)) as way:
        first = way.latest(BEGINNING, 600)
    with closing(DriverStream(source)) as other:
        second = other.latest(again(first), 100, SIZE, 5)
        part = other.part(first, second)
    with closing(SplitStream(source)) as way:
        rest = way.latest(again(second), SIZE)

    got = [*map(int, read(source, first)), *numbers(part), *map(int, read(source, rest))]
    assert got == list(range(1000))


def test_parts_without_a_record_do_not_tell_where_they_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("\n" * 100)
    source = file.Source(path=path, format="json")
    with closing(SplitStream(source)) as way:
        blank = way.latest(BEGINNING, SIZE)
    with closing(SplitStream(source)) as way, pytest.raises(FatalError, match="its parts have no record"):
        way.latest(again(blank), SIZE)
