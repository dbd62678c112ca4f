"""The Delta destination passes the acceptance suite, and each record is in the table once, whenever it is killed."""

import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors.delta import Destination
from deltalake import DeltaTable, write_deltalake
from s3_server import ACCESS_KEY, SECRET_KEY
from warm_python import run_warm

from conduit_py.errors import FatalError, Fenced, TransientError
from conduit_py.record import Record
from conduit_py.testing import destination_acceptance


def stored(path: Path) -> list[Any]:
    """What any reader of Delta tables sees."""
    rows: list[Any] = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(path)) else []
    return sorted(rows, key=lambda row: row["n"])


def a_table(tmp_path: Path) -> tuple[Destination, Callable[[], list[Any]]]:
    path = tmp_path / "a table"
    return Destination(path=str(path), columns={"n": "long", "from": "string"}), lambda: stored(path)


TestDelta = destination_acceptance(a_table, refused=Record.of({"n": 1.5}))


def opened(path: Path, **options: Any) -> Destination:
    destination = Destination(path=str(path), **options)
    assert destination.problems == []
    destination = destination.fresh()
    destination.open()
    return destination


def test_values_arrive_in_the_types_of_the_table(tmp_path: Path) -> None:
    columns = {"n": "integer", "d": "decimal(10,2)", "t": "timestamp", "day": "date", "b": "binary", "x": "double"}
    row = {
        "n": 1,
        "d": Decimal("1.50"),
        "t": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "b": b"\x00\xff",
        "x": 0.5,
    }
    destination = opened(tmp_path, columns=columns, partition_by=["day"])
    refused = destination.write(batch_of(row, {"n": 2}, {"n": 2**31}, b"raw", None, {"n": 3, "more": 1}))
    destination.flush()

    assert sorted(refused) == [2, 3, 4, 5]
    assert "does not fit the column's type int32" in refused[2]
    assert stored(tmp_path) == [row, dict.fromkeys(row) | {"n": 2}]
    assert DeltaTable(tmp_path).metadata().partition_columns == ["day"]


def test_a_table_of_somebody_else_is_appended_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_deltalake(tmp_path, pa.table({"n": pa.array([1], pa.int32()), "text": ["a"]}))
    destination = opened(tmp_path, on_new_field="ignore")
    refused = destination.write(batch_of({"n": 2, "text": "b", "more": 1}))
    write_deltalake(tmp_path, pa.table({"n": pa.array([3], pa.int32()), "text": ["c"]}), mode="append")
    destination.flush()
    destination.teardown()

    assert refused == {}
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(" ")[0] for message in messages] == ["the", "ignored"]
    assert "has no column 'more'" in messages[0]
    assert stored(tmp_path) == [{"n": n, "text": text} for n, text in ((1, "a"), (2, "b"), (3, "c"))]


def test_a_transaction_is_one_commit_however_many_files_it_staged(tmp_path: Path) -> None:
    destination = opened(tmp_path, columns={"n": "long"}, rows_max=2)
    destination.begin("p:1", 3, [])
    for n in range(0, 6, 2):
        destination.write(batch_of({"n": n}, {"n": n + 1}))
    intent = destination.stage()
    before = (stored(tmp_path), len(list(tmp_path.glob("_conduit/*/*.parquet"))))
    assert intent is not None
    destination.apply(intent)
    # Another one that goes on with the work finds the commit by its number, though the files are gone.
    opened(tmp_path).begin("p:1", 4, [intent])

    assert before == ([], 3)
    assert [row["n"] for row in stored(tmp_path)] == [0, 1, 2, 3, 4, 5]
    assert DeltaTable(tmp_path).version() == 1
    assert list(tmp_path.glob("_conduit/*/*.parquet")) == []


def test_a_zombie_that_applies_the_same_intent_adds_nothing(tmp_path: Path) -> None:
    zombie = opened(tmp_path, columns={"n": "long"})
    zombie.begin("p", 1, [])
    zombie.write(batch_of({"n": 1}))
    intent = zombie.stage()
    assert intent is not None
    [file] = tmp_path.glob("_conduit/*/*.parquet")
    kept = file.read_bytes()
    opened(tmp_path).begin("p", 2, [intent])
    file.write_bytes(kept)
    zombie.apply(intent)

    assert stored(tmp_path) == [{"n": 1}]


def test_a_state_that_began_anew_is_not_believed(tmp_path: Path) -> None:
    destination = opened(tmp_path, columns={"n": "long"})
    destination.begin("p", 5, [])
    destination.write(batch_of({"n": 1}))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)

    # Its transactions would have lower numbers, and count as applied before.
    with pytest.raises(Fenced, match="state directory"):
        opened(tmp_path).begin("p", 1, [])


def test_a_table_can_be_in_an_object_store(s3_server: str) -> None:
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    store = keys | {"aws_endpoint_url": s3_server, "aws_region": "us-east-1", "aws_allow_http": "true"}
    bucket = f"delta-{uuid4().hex}"
    boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1", **keys).create_bucket(Bucket=bucket)
    options: dict[str, Any] = {"path": f"s3://{bucket}/a table", "columns": {"n": "long"}, "storage": store}

    def opened_there() -> Destination:
        destination = Destination(**options).fresh()
        destination.open()
        return destination

    crashed = opened_there()
    crashed.begin("p", 1, [])
    crashed.write(batch_of({"n": 1}, {"n": 2}))
    committed = crashed.stage()
    crashed.write(batch_of({"n": 3}))
    crashed.stage()
    assert committed is not None
    for fence in (2, 3):
        destination = opened_there()
        destination.begin("p", fence, [committed])
    table = DeltaTable(options["path"], storage_options=store)

    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 2]
    assert SECRET_KEY not in str(Destination(**options).options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "there is no Delta table at"),
        ({"columns": {"n": "number"}}, "`columns` cannot be parsed"),
        ({"columns": {"n": "long"}, "partition_by": ["x"]}, "x"),
    ],
)
def test_what_is_missing_or_wrong_is_reported(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(FatalError, match=why):
        opened(tmp_path / "table", **options)


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((FatalError, TransientError), match="file/table"):
        opened(tmp_path / "file" / "table", columns={"n": "long"})


class TestNewFields:
    def test_get_columns_in_the_commit_of_their_rows(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"}, on_new_field="add")
        at = datetime(2026, 1, 2, tzinfo=UTC)
        rows = [{"n": 2, "b": "x", "c": None}, {"n": 3, "c": Decimal("1.5"), "at": at}]
        assert destination.write(batch_of({"n": 1}, *rows)) == {}
        assert destination.write(batch_of({"n": 4, "b": 7})) != {}
        destination.flush()

        nothing = dict.fromkeys(("b", "c", "at"))
        assert stored(tmp_path) == [nothing | {"n": 1}, nothing | rows[0], nothing | rows[1]]
        assert DeltaTable(tmp_path).version() == 1

    def test_are_part_of_a_stage(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"}, on_new_field="add", rows_max=1)
        destination.begin("p", 1, [])
        for row in ({"n": 1}, {"n": 2, "b": "x"}):
            assert destination.write(batch_of(row)) == {}
        intent = destination.stage()
        assert intent is not None
        before = DeltaTable(tmp_path).schema().to_json()
        successor = opened(tmp_path, on_new_field="add")
        successor.begin("p", 2, [intent])

        assert '"b"' not in before
        assert stored(tmp_path) == [{"n": 1, "b": None}, {"n": 2, "b": "x"}]

    def test_that_another_writer_adds_have_its_type(self, tmp_path: Path) -> None:
        one, other = (opened(tmp_path, columns={"n": "long"}, on_new_field="add") for _ in range(2))
        assert one.write(batch_of({"n": 1, "b": "x"})) == {}
        one.flush()

        assert set(other.write(batch_of({"n": 2, "b": 5}, {"n": 3, "b": "y"}))) == {0}
        other.flush()
        assert stored(tmp_path) == [{"n": 1, "b": "x"}, {"n": 3, "b": "y"}]

    def test_that_can_have_no_column_refuse_the_record_and_say_why(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"}, on_new_field="add")
        fields: list[Any] = [{"N": 1}, {"a b": 1}, {"": 1}, {"x": timedelta(1)}, {"x": {1, 2}}, {"n": 1, "y": None}]
        refused = destination.write(batch_of(*fields))
        destination.flush()

        reasons = ["differ only in case", "this name", "this name", "no type", "no type"]
        assert all(reason in refused[index] for index, reason in enumerate(reasons))
        assert set(refused) == set(range(5))
        assert stored(tmp_path) == [{"n": 1}]


KILLED = """
import os, signal
from pathlib import Path
from conduit_connectors import delta, file
from conduit_py import Destination, Pipeline, Source, TransactionLimits

folder = Path(os.environ["FOLDER"])

class Killed(delta.Destination):
    times = 0

    def apply(self, intent):
        before = os.environ["KILL"]
        Killed.times += 1
        if before == "before commit" and self.times == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().apply(intent)
        if before == "before ack" and self.times == 2:
            os.kill(os.getpid(), signal.SIGKILL)

pipeline = Pipeline(
    "killed",
    sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"), batch_size=20)],
    destinations=[Destination("table", Killed(path=str(folder / "table"), columns={"n": "long"}))],
    delivery="exactly_once",
    transaction=TransactionLimits(max_records=40),
)
"""


@pytest.mark.parametrize("kill", ["before commit", "before ack"])
def test_every_record_is_there_once_when_the_process_is_killed(tmp_path: Path, kill: str) -> None:
    """Before or after the second commit of the table, while its transaction is already committed in the state."""
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(200)))
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, "-m", "conduit_py.cli.main", "run", "killed.py", "--state", str(tmp_path / "state")]

    def run(kill: str) -> int:
        environment = os.environ | {"FOLDER": str(tmp_path), "KILL": kill}
        ran = run_warm(command, cwd=tmp_path, env=environment, preloaded=["conduit_connectors.delta"])
        assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
        return ran.returncode

    assert [run(kill), run("never")] == [-signal.SIGKILL, 0]
    assert [row["n"] for row in stored(tmp_path / "table")] == list(range(200))


def test_folders_above_staged_and_partitioned_files_are_durable(tmp_path: Path, synced: set[Path]) -> None:
    destination = opened(tmp_path / "new" / "t", columns={"n": "long", "day": "string"}, partition_by=["day"])
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 1, "day": "x"}))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)

    staged = next((tmp_path / "new" / "t" / "_conduit").iterdir())
    [file] = (tmp_path / "new" / "t" / "day=x").iterdir()
    assert {*file.parents, staged, staged.parent} <= synced | {Path("/")}
