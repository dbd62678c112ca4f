"""The destination of objects: whole files only, folders that no record escapes, each row once if that is promised."""

import csv
import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import objects, parquet

from conduit_py.record import Record
from conduit_py.sdk import FatalError
from conduit_py.testing import destination_acceptance


def read_file(path: Path) -> list[Any]:
    if path.suffix == ".avro":
        with open(path, "rb") as file:
            return list(fastavro.reader(file))
    if path.suffix == ".parquet":
        return list(pq.read_table(path, partitioning=None).to_pylist())
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".csv" in path.name:
        return [{**row, "n": int(row["n"])} for row in csv.DictReader(content.decode().splitlines())]
    return [json.loads(line) for line in content.splitlines()]


def stored(folder: Path) -> list[Any]:
    files = sorted(path for path in folder.rglob("part-*") if "_conduit" not in path.parts)
    return [row for path in sorted(files, key=lambda path: path.name) for row in read_file(path)]


def a_dataset(**options: Any) -> Callable[[Path], Any]:
    def dataset(tmp_path: Path) -> Any:
        folder = tmp_path / "100%d out"
        return objects.Destination(url=str(folder), rows_max=3, **options), lambda: stored(folder)

    return dataset


COLUMNS = {"n": "int64", "from": "string"}
UNFIT = Record.of({"n": 1.5})
TestJson = destination_acceptance(a_dataset(compression="gzip"), refused=Record.of(b"raw"))
TestCsv = destination_acceptance(a_dataset(format="csv"), refused=Record.of({"n": {}}))
TestAvro = destination_acceptance(a_dataset(format="avro", columns=COLUMNS), refused=UNFIT)
TestParquet = destination_acceptance(a_dataset(format="parquet", columns=COLUMNS), refused=UNFIT)


def opened(url: Path | str, **options: Any) -> objects.Destination:
    made = objects.Destination(url=str(url), **options)
    assert made.problems == []
    destination = made.fresh()
    destination.open()
    return destination


def names(folder: Path) -> list[str]:
    return sorted({str(path.parent.relative_to(folder)) for path in folder.rglob("part-*")})


@pytest.mark.parametrize("format", ["json", "csv", "avro", "parquet"])
def test_rows_are_in_the_folders_of_their_values(tmp_path: Path, format: str) -> None:
    at = datetime(2026, 11, 17, 23, 59, tzinfo=UTC)
    rows = [{"n": n, "land": land, "at": at} for n, land in enumerate(["DE", "FR", "DE", "a b/ü"])]
    destination = opened(tmp_path, format=format, partition_by=["land", "day(at)"])
    assert destination.write(batch_of(*rows)) == {}
    destination.flush()
    destination.teardown()
    reader = {"json": "read_json_auto", "csv": "read_csv", "avro": None, "parquet": "read_parquet"}[format]

    assert names(tmp_path) == [f"land={land}/at_day=2026-11-17" for land in ("DE", "FR", "a b%2F%C3%BC")]
    if reader is not None:
        pattern = f"{tmp_path}/*/*/part-*"
        found = duckdb.sql(f"SELECT n, land, at_day FROM {reader}('{pattern}', hive_partitioning=true) ORDER BY n")
        assert found.fetchall() == [(row["n"], row["land"], date(2026, 11, 17)) for row in rows]


def test_no_record_chooses_a_folder_outside_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    hostile = [
        "../../x",
        "..",
        ".",
        "a/../../b",
        "\0",
        "\n",
        "%2e%2e",
        "x" * 300,
        "",
        "=",
        "__HIVE_DEFAULT_PARTITION__",
    ]
    others: list[Any] = [None, True, 1.5, {}, b"x", "\ud800", date(2026, 1, 2)]
    destination = opened(folder, partition_by=["a"])
    refused = destination.write(batch_of(*({"a": value, "n": 1} for value in [*hostile, *others]), {"n": 1}))
    destination.flush()
    destination.teardown()

    assert sorted(refused) == [7, 8, 10, 13, 14, 15, 16, 18]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    found = {path.parent.name for path in folder.rglob("part-*")}
    assert all(path.parent.parent == folder for path in folder.rglob("part-*"))
    assert found == {
        "a=..%2F..%2Fx", "a=..", "a=.", "a=a%2F..%2F..%2Fb", "a=%00", "a=%0A", "a=%252e%252e", "a=%3D",
        "a=__HIVE_DEFAULT_PARTITION__", "a=true", "a=2026-01-02",
    }  # fmt: skip


def test_a_record_whose_folder_no_disk_can_have_is_refused_before_the_commit(tmp_path: Path) -> None:
    name = "b" * 60
    longest, fields = "x" * (255 - len(f"{name}=")), [name, "c", "d", "e"]
    destination = opened(tmp_path, partition_by=fields)
    destination.begin("p", 1, [])
    refused = destination.write(
        batch_of(
            *(dict.fromkeys(fields, "1") | {"n": 1, name: value} for value in (longest, longest + "x", "ü" * 40)),
            # Each of these names a folder, but together they are longer than the key of an object may be.
            {"n": 1, name: "1", **dict.fromkeys("cde", "y" * 230)},
        )
    )
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    destination.teardown()

    assert refused == {
        1: f"{name!r} is too long for the name of a folder",
        2: f"{name!r} is too long for the name of a folder",
        3: "the names of its folders are too long together",
    }
    assert names(tmp_path) == [f"{name}={longest}/c=1/d=1/e=1"]


def test_many_folders_do_not_keep_many_files_open(tmp_path: Path) -> None:
    destination = opened(tmp_path, partition_by=["n"])
    destination.write(batch_of(*({"n": n, "m": n} for n in range(200))))
    assert len(list((tmp_path / "_conduit" / "open").iterdir())) == 200  # complete, and not visible before the flush
    destination.flush()
    destination.teardown()

    assert len(names(tmp_path)) == 200


def test_values_of_avro_arrive_in_their_types(tmp_path: Path) -> None:
    row = {
        "d": Decimal("1.50"), "t": datetime(2026, 1, 2, tzinfo=UTC), "day": date(2026, 1, 2), "b": b"\xff",
        "tags": ["a", "b"], "inner": {"x": 1}, "f": 0.5, "none": None,
    }  # fmt: skip
    columns = {"d": "decimal(10, 2)", "t": "timestamp[us, UTC]", "day": "date32", "b": "binary", "none": "string"}
    destination = opened(tmp_path / "a", format="avro")
    destination.write(batch_of(row))
    destination.flush()
    destination.teardown()
    declared = opened(tmp_path / "b", format="avro", columns=columns)
    assert declared.write(batch_of({name: row[name] for name in columns})) == {}
    declared.flush()
    declared.teardown()

    assert stored(tmp_path / "a") == [{name: value for name, value in row.items() if value is not None}]
    assert stored(tmp_path / "b") == [{name: row[name] for name in columns}]
    with pytest.raises(FatalError, match="Avro has no type for timestamp"):
        opened(tmp_path / "c", format="avro", columns={"t": "timestamp[ns]"}).write(batch_of({"t": None}))


def test_all_files_of_csv_have_the_columns_of_the_first(tmp_path: Path) -> None:
    first = opened(tmp_path, format="csv", rows_max=1)
    first.write(batch_of({"n": 1, "a": "x"}))
    first.flush()
    first.teardown()
    second = opened(tmp_path, format="csv")
    refused = second.write(batch_of({"a": "y", "n": 2}, {"n": 3}))
    second.flush()
    second.teardown()

    assert list(refused) == [1]
    assert sorted(path.read_text() for path in tmp_path.glob("part-*")) == ["n,a\n1,x\n", "n,a\n2,y\n"]


def test_a_transaction_is_visible_after_its_commit_and_what_a_dead_one_staged_is_removed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"partition_by": ["a"], "format": "parquet"}
    dead = opened(tmp_path, **options)
    dead.begin("p", 1, [])
    dead.write(batch_of({"a": 1, "n": 1}))
    assert dead.stage() is not None
    dead.teardown()
    live = opened(tmp_path, **options)
    live.begin("p", 2, [])
    assert list((tmp_path / "_conduit").rglob("*.parquet")) == []
    live.write(batch_of({"a": 1, "n": 2}, {"a": 2, "n": 3}))
    intent = live.stage()
    assert intent is not None
    assert list(tmp_path.glob("a=*")) == []
    live.apply(intent)
    live.apply(intent)
    live.teardown()

    assert stored(tmp_path) == [{"n": 2}, {"n": 3}]
    assert list((tmp_path / "_conduit").rglob("*.parquet")) == []


def test_destinations_of_one_dataset_claim_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("out")
    same = [f"{tmp_path}/out", "out", "./out/", "x/../out", "link", f"file://{tmp_path}/out"]
    claims = {objects.Destination(url=url).claims for url in same}
    claims |= {parquet.Destination(path=path).claims for path in ("out", "link")}

    assert claims == {f"the folder {tmp_path}/out"}
    assert objects.Destination(url="out/x").claims == parquet.Destination(path="out/x").claims not in claims


def test_destinations_of_one_folder_of_a_bucket_claim_the_same() -> None:
    def claims(url: str, **options: Any) -> str:
        return objects.Destination(url=url, **options).claims

    assert claims("s3://b/out") == claims("s3a://b/out//") == "the folder s3://b/out"
    assert claims("sftp://me@host/out/") == claims("sftp://me:secret@host/out") == "the folder sftp://me@host/out"
    assert claims("s3://b/out", s3_endpoint="http://one/") == "the folder s3://b/out of http://one"
    assert claims("s3://b/out", store_options={"aws_endpoint": "http://one"}) == "the folder s3://b/out of http://one"
    assert len({claims("s3://b/out"), claims("s3://c/out"), claims("s3://b/"), claims("gs://b/out")}) == 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "out/*"}, "one folder, without wildcards"),
        ({"url": "out", "compression": "snappy"}, "json can be compressed with"),
        ({"url": "out", "columns": ["a"]}, "columns is a list of names for csv"),
        ({"url": "out", "format": "csv", "columns": {"a": "int64"}}, "columns is a list of names for csv"),
        ({"url": "out", "partition_by": ["a", "a"]}, "named twice"),
    ],
)
def test_options_that_make_no_sense_are_problems(options: Any, problem: str) -> None:
    assert problem in str(objects.Destination(**options).problems)


def test_tables_are_written_as_they_are(tmp_path: Path) -> None:
    destination = opened(tmp_path, format="parquet", rows_max=2)
    destination.write(batch_of({"n": 1}, {"n": 2}, {"n": 3}))
    destination.flush()
    destination.teardown()

    assert [pq.read_table(path).schema for path in tmp_path.glob("*.parquet")] == 2 * [pa.schema([("n", pa.int64())])]


def test_records_change_the_columns_of_later_files_only(tmp_path: Path) -> None:
    destination = objects.Destination(
        url=str(tmp_path),
        format="parquet",
        partition_by=["c"],
        on_new_field="add",
        on_type="widen",
        columns={"c": "string", "n": "int32"},
    ).fresh()
    destination.open()
    destination.begin("p", 1, [])
    assert destination.write(batch_of({"c": "x", "n": 1})) == {}
    more = [{"c": "x", "n": 2**40, "more": "m"}, {"c": "y", "n": 3}, {"c": "y", "n": "n"}]
    assert list(destination.write(batch_of(*more))) == [2]
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    destination.teardown()

    tables = [pq.read_table(path, partitioning=None) for path in sorted(tmp_path.glob("c=*/*.parquet"))]
    assert [table.to_pylist() for table in tables] == [
        [{"n": 1}],
        [{"n": 2**40, "more": "m"}],
        [{"n": 3, "more": None}],
    ]
    [problem] = objects.Destination(url=str(tmp_path), format="json", on_new_field="add").problems
    assert "no typed columns" in str(problem)
