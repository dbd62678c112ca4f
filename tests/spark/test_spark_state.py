"""Processors with state on Spark: they run on the driver, on the state that they have on one machine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_connectors import file

from conduit_py import pipeline as p
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Record
from conduit_py.sdk.processor import processor
from conduit_py.sdk.state import State
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@processor
def scaled(record: Record) -> Record | None:
    if record.payload["n"] % 10 == 9:
        return None
    record.payload["amount"] = 3 * record.payload["n"]
    return record


@processor(state=True)
def summed(record: Record, state: State) -> Record:
    total = state.get("total", 0) + record.payload["amount"]
    state.put("total", total)
    record.payload["total"] = total
    return record


@processor
def named(record: Record) -> Record:
    record.payload["name"] = f"sum {record.payload['total']}"
    return record


def running_sums(folder: Path) -> p.Pipeline:
    return p.Pipeline(
        "sums",
        sources=[p.Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
        processors=[scaled, summed, named],
        destinations=[p.Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
        delivery="exactly_once",
    )


async def test_a_running_sum_goes_on_from_one_engine_to_the_other(
    tmp_path: Path, spark: "SparkSession", spark_options: dict[str, Any]
) -> None:
    store = MemoryStore()
    progress = []
    for turn in range(3):
        with (tmp_path / "in.jsonl").open("a") as lines:
            lines.writelines(json.dumps({"n": n}) + "\n" for n in range(400 * turn, 400 * turn + 400))
        supervisor: Supervisor = Supervisor(running_sums(tmp_path), store)
        if turn != 1:
            options = SparkOptions(**spark_options)
            supervisor = SparkSupervisor(running_sums(tmp_path), store, spark=options, part_size=2000)
        state = await supervisor.run()
        assert state.status is Status.COMPLETED, state.error
        progress.append(supervisor.progress())

    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    total, expected = 0, []
    for n in (n for n in range(1200) if n % 10 != 9):
        total += 3 * n
        expected.append({"n": n, "amount": 3 * n, "total": total, "name": f"sum {total}"})
    assert out == expected
    counts = [[(meter.node, meter.records, meter.filtered) for meter in each.nodes] for each in progress]
    assert counts[0] == counts[1] == counts[2]
    assert [each.filtered for each in progress] == [40, 40, 40]
