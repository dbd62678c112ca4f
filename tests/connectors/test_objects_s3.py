"""Objects of a real S3 service: read, replaced, moved and written, whatever their names are."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import objects
from s3_server import BucketFolder

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Record
from conduit_py.testing import destination_acceptance, source_acceptance


@pytest.fixture
def bucket(s3_server: str) -> BucketFolder:
    return BucketFolder(s3_server)


def opened(bucket: BucketFolder, path: str, position: bytes | None = None, **options: Any) -> objects.Source:
    made = objects.Source(url=bucket.url(path), **bucket.options, **options)
    assert made.problems == []
    source = made.fresh()
    source.open(position)
    return source


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % number for number in numbers)


def a_bucket(bucket: BucketFolder) -> objects.Source:
    bucket.put("in/b/1.jsonl.gz", gzip.compress(lines(4, 5, 6)))
    bucket.put("in/a-b/%2F ü?#.jsonl", lines(1, 2, 3))
    bucket.put("in/_draft.jsonl", lines(7))
    return objects.Source(url=bucket.url("in/**/*"), **bucket.options)


TestS3Source = source_acceptance(a_bucket)


def a_dataset(bucket: BucketFolder) -> tuple[objects.Destination, Callable[[], list[Any]]]:
    def stored() -> list[Any]:
        keys = sorted(key for key in bucket.keys("out/100%/") if "_conduit" not in key)
        return [json.loads(line) for key in keys for line in bucket.get(key).splitlines()]

    return objects.Destination(url=bucket.url("out/100%"), rows_max=3, **bucket.options), stored


TestS3Destination = destination_acceptance(a_dataset, refused=Record.of(b"raw"))


def read_on(source: objects.Source) -> list[Record]:
    found: list[Record] = []
    while True:
        try:
            reading = source.read(1000)
        except EndOfSource:
            return found
        except NothingYet:
            # The latest objects are about to settle.
            time.sleep(0.01)
            continue
        found += reading.records if isinstance(reading, Reading) else reading


def numbers(records: list[Record]) -> list[int]:
    rows: list[Any] = [record.payload.after for record in records]
    return [row["n"] for row in rows]


def test_every_record_is_read_once_although_the_service_lists_by_folder(bucket: BucketFolder) -> None:
    # SeaweedFS lists a/ before a-b/, Amazon the other way round.
    for number, key in enumerate(("a/1", "a-b/2", "a/b/3", "a.x", "z")):
        bucket.put(f"in/{key}.jsonl", lines(number))
    records = read_on(opened(bucket, "in"))

    assert sorted(numbers(records)) == [0, 1, 2, 3, 4]
    for index, record in enumerate(records):
        for mode in ("reread", "new-only", "refuse"):
            positions = read_on(opened(bucket, "in", on_replaced=mode))
            rest = read_on(opened(bucket, "in", positions[index].position, on_replaced=mode))
            assert numbers(rest) == numbers(records[index + 1 :])
        assert read_on(opened(bucket, "in", record.position)) == records[index + 1 :]


def test_a_replaced_object_is_read_again_and_never_half_of_each(bucket: BucketFolder) -> None:
    bucket.put("in/a.jsonl", lines(1, 2))
    first = read_on(opened(bucket, "in"))
    bucket.put("in/a.jsonl", lines(3, 4))
    second = read_on(opened(bucket, "in", first[-1].position))
    rest = read_on(opened(bucket, "in", first[0].position))

    assert numbers(second) == [3, 4]
    assert numbers(rest) == [3, 4]
    with pytest.raises(FatalError, match="was replaced: it is not the object that was read up to 9"):
        opened(bucket, "in", first[0].position, on_replaced="refuse")


def test_objects_are_moved_when_their_records_are_durable(bucket: BucketFolder) -> None:
    for name in "abc":
        bucket.put(f"in/{name}.jsonl", lines(1, 2))
    source = opened(bucket, "in/*.jsonl", after="move", move_to=bucket.url("in/_done"))
    records = read_on(source)
    source.ack([record.position for record in records[:4]])
    assert bucket.keys("in/") == ["in/_done/a.jsonl", "in/_done/b.jsonl", "in/c.jsonl"]
    source.teardown()
    later = opened(bucket, "in/*.jsonl", records[-1].position, after="move", move_to=bucket.url("in/_done"))

    assert bucket.keys("in/") == [f"in/_done/{name}.jsonl" for name in "abc"]
    assert read_on(later) == []


def test_a_large_parquet_object_is_read_by_ranges(bucket: BucketFolder, tmp_path: Path) -> None:
    table = pa.table({"n": range(300_000)})
    pq.write_table(table, tmp_path / "x", row_group_size=50_000, compression="none")
    bucket.put("in/x.parquet", (tmp_path / "x").read_bytes())
    source = opened(bucket, "in/x.parquet")
    records = read_on(source)
    source.teardown()
    rest = opened(bucket, "in/x.parquet", records[123_456].position)

    assert numbers(records) == list(range(300_000))
    assert numbers(read_on(rest))[:2] == [123_457, 123_458]
    rest.teardown()


def test_values_of_records_do_not_choose_a_key(bucket: BucketFolder) -> None:
    destination = objects.Destination(url=bucket.url("out"), partition_by=["a"], **bucket.options).fresh()
    destination.open()
    destination.write(batch_of(*({"a": value, "n": 1} for value in ("../../x", "..", "a/b", "ü %", "#?"))))
    destination.flush()
    destination.teardown()

    folders = sorted(key.rsplit("/", 1)[0] for key in bucket.keys("out/"))
    assert folders == sorted(f"out/a={name}" for name in ("..%2F..%2Fx", "..", "a%2Fb", "%C3%BC %25", "%23%3F"))
    assert bucket.keys() == bucket.keys("out/")


def test_what_cannot_be_reached_is_reported_in_one_line(bucket: BucketFolder) -> None:
    wrong = objects.Source(url=bucket.url("in"), **(bucket.options | {"s3_secret_key": "wrong"})).fresh()
    wrong.open(None)
    with pytest.raises(FatalError, match=f"no access to {bucket.root}/in") as raised:
        wrong.read(1)

    assert "\n" not in raised.value.message
    assert "wrong" not in raised.value.message
