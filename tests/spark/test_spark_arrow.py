"""Arrow processors on both engines: executors hand tables to the same functions, with the same outcome."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conduit_connectors import file

from conduit_py import DeadLetters, Destination, Pipeline, Rows, Source, TransactionLimits, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store

Engine = Callable[[Pipeline, Store], Supervisor]


@pytest.fixture(params=["trio", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "trio":
        return Supervisor
    request.getfixturevalue("spark")
    options = SparkOptions(**request.getfixturevalue("spark_options"))
    return lambda pipeline, store: SparkSupervisor(pipeline, store, spark=options, part_size=8000)


@processor(arrow=pa.schema([("price", pa.string()), ("n", pa.int64())]))
def priced(table: pa.Table) -> Rows:
    """Every third record is filtered; a price below zero is refused, and one that is no number raises."""
    cents = pc.cast(pc.multiply(pc.cast(table["price"], pa.decimal128(10, 2)), 100), pa.int64())
    third = pc.equal(pc.subtract(table["n"], pc.multiply(pc.divide(table["n"], 3), 3)), 2)
    refuse = pc.if_else(pc.less(cents, 0), "costs less than nothing", None)
    return Rows(table.drop_columns("price").append_column("cents", cents), keep=pc.invert(third), refuse=refuse)


def order(n: int) -> dict[str, Any]:
    price = "much" if n % 100 == 7 else -1.5 if n % 100 == 11 else f"{n}.25" if n % 100 != 13 else f"-{n}"
    return {"n": n, "price": price, "big": 2**70 + n, "note": {"n": n}}


async def test_tables_are_changed_filtered_and_refused_row_by_row_exactly_once(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(order(n)) + "\n" for n in range(600)))
    pipeline = Pipeline(
        "prices",
        sources=[Source("in", file.Source(path=tmp_path / "in.jsonl", format="json"))],
        processors=[priced],
        destinations=[Destination("out", file.Destination(path=tmp_path / "out.jsonl", format="json"))],
        dead_letters=DeadLetters(file.Destination(path=tmp_path / "dead.jsonl", format="json")),
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=200),
    )

    state = await engine(pipeline, MemoryStore()).run()

    assert state.status is Status.COMPLETED, state.error
    good = [n for n in range(600) if n % 3 != 2 and n % 100 not in (7, 11, 13)]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        {"n": n, "big": 2**70 + n, "note": {"n": n}, "cents": 100 * n + 25} for n in good
    ]
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [letter["record"]["payload"]["after"] for letter in letters] == [
        order(n) for n in range(600) if n % 100 in (7, 11, 13)
    ]
    assert {letter["node"] for letter in letters} == {"priced"}
    assert [letter["error"] for letter in letters[1:3]] == [
        "price does not fit the column's type string: Expected bytes, got a 'float' object",
        "costs less than nothing",
    ]
    assert letters[0]["error"].startswith("ArrowInvalid: ")
