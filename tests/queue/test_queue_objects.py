"""Objects that messages announce, read for real: files, and objects of an S3 service (QW-C3, QW-C4)."""

import gzip
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import memory, sqlite_queue
from conduit_connectors.objects import ObjectOptions, ObjectReader
from conduit_connectors.sqlite_queue import SqliteQueue
from pydantic import SecretStr
from s3_server import ACCESS_KEY, SECRET_KEY

from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Destination, Pipeline, Source
from conduit_py.sdk.queue import ObjectRecord
from conduit_py.status import Stopper
from conduit_py.store.memory import MemoryStore


def content(count: int, width: int = 10) -> bytes:
    return b"".join(json.dumps({"n": n, "text": "x" * width}).encode() + b"\n" for n in range(count))


async def brought(folder: Path, bodies: Sequence[bytes], **options: Any) -> list[int]:
    """The numbers of all records of what these messages announce, once all messages are acked."""
    queue = SqliteQueue(folder / "queue.db")
    queue.open()
    queue.send(bodies)
    into: list[Any] = []
    pipeline = Pipeline(
        "objects",
        sources=[Source("queue", sqlite_queue.Source(path=folder / "queue.db", **options), batch_size=500)],
        destinations=[Destination("out", memory.Destination(into=into))],
    )
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        with trio.fail_after(300):
            while len(queue):  # noqa: ASYNC110 - a file tells nobody that it has changed
                await trio.sleep(0.02)
        supervisor.stop(Stopper.USER)
    queue.close()
    return [record.payload.after["n"] for record in into]


async def test_qw_c3_a_big_object_comes_in_several_batches_and_whole(tmp_path: Path) -> None:
    whole = content(6000, width=1000)
    assert len(whole) > 5 * 2**20
    path = tmp_path / "big.jsonl.gz"
    path.write_bytes(gzip.compress(whole, 1))
    allowed = {"allowed_prefixes": [str(tmp_path)]}

    assert await brought(tmp_path, [str(path).encode()], messages="uri", **allowed) == list(range(6000))


async def test_qw_c4_objects_of_different_compression_come_through_one_queue(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_bytes(content(10))
    packed.write_bytes(gzip.compress(content(10)))

    allowed = {"allowed_prefixes": [str(tmp_path)]}
    addresses = [str(plain).encode(), f"file://{packed}".encode()]
    assert await brought(tmp_path, addresses, messages="uri", **allowed) == [*range(10), *range(10)]


class Bucket:
    """A bucket of a real S3 service."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.name = name
        self.options: dict[str, Any] = {
            "allowed_prefixes": [f"s3://{name}/"],
            "s3_endpoint": endpoint,
            "s3_region": "us-east-1",
            "s3_access_key": SecretStr(ACCESS_KEY),
            "s3_secret_key": SecretStr(SECRET_KEY),
        }
        self._client = boto3.session.Session().client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )  # fmt: skip
        self._client.create_bucket(Bucket=name)

    def put(self, key: str, body: bytes) -> str:
        self._client.put_object(Bucket=self.name, Key=key, Body=body)
        return f"s3://{self.name}/{key}"

    def event(self, key: str) -> bytes:
        """What S3 says when an object was created."""
        about = {"bucket": {"name": self.name}, "object": {"key": key.replace(" ", "+")}}
        return json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": about}]}).encode()


@pytest.fixture
def bucket(s3_server: str, queue_name: str) -> Bucket:
    return Bucket(s3_server, queue_name)


def numbers_of(parts: Iterable[ObjectRecord]) -> list[Any]:
    return [part.record["n"] for part in parts if isinstance(part.record, dict)]


@pytest.mark.parametrize("name", ["plain.jsonl", "packed.jsonl.gz"])
def test_an_object_of_s3_is_read_from_any_point_on(bucket: Bucket, name: str) -> None:
    whole = content(3000, width=200)
    address = bucket.put(f"a folder/{name}", gzip.compress(whole) if name.endswith(".gz") else whole)
    reader = ObjectReader(ObjectOptions(**bucket.options))

    parts = list(reader.open(address, 0))

    assert numbers_of(parts) == list(range(3000))
    for index in (0, 1499, 2998, 2999):
        rest = list(reader.open(address, parts[index].offset))
        assert numbers_of(rest) == list(range(index + 1, 3000))


def test_parquet_of_s3_is_read_from_any_point_on(bucket: Bucket) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"n": range(3000)}), whole, row_group_size=1000)
    address = bucket.put("a folder/rows.parquet", whole.getvalue())
    reader = ObjectReader(ObjectOptions(**bucket.options))

    assert numbers_of(reader.open(address, 0)) == list(range(3000))
    assert numbers_of(reader.open(address, 2500)) == list(range(2500, 3000))
    with pytest.raises(FileNotFoundError):
        next(reader.open(f"s3://{bucket.name}/missing.parquet", 0))


def test_an_object_that_is_not_in_s3_is_said_to_be_missing(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        ObjectReader(ObjectOptions(**bucket.options)).open(f"s3://{bucket.name}/missing.jsonl", 0)


async def test_what_s3_announces_is_read_from_it(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("one day/a.jsonl", content(30))
    bucket.put("b.jsonl.gz", gzip.compress(content(20)))
    bodies = [bucket.event("one day/a.jsonl"), bucket.event("b.jsonl.gz"), b'{"Event": "s3:TestEvent"}']

    assert await brought(tmp_path, bodies, messages="s3", **bucket.options) == [*range(30), *range(20)]
