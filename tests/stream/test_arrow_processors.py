"""Arrow processors in pipelines: every way to write one, with conditions, retries, workers, dead letters and checks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import trio
from conduit_connectors import memory
from trio.testing import MockClock

from conduit_py import (
    Batch,
    DeadLetter,
    DeadLetters,
    Destination,
    Pipeline,
    PipelineInvalid,
    Processor,
    Record,
    Retry,
    Rows,
    Source,
    TransientError,
    processor,
    sdk,
)
from conduit_py.graph.compile import compile_pipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore


class Outcome:
    """A pipeline from a list through processors to a list, after its run."""

    def __init__(self) -> None:
        self.state = PipelineState()
        self.written: list[Record] = []
        self.letters: list[DeadLetter] = []

    @property
    def payloads(self) -> list[Any]:
        return [record.payload.after for record in self.written]

    @property
    def refused(self) -> list[tuple[Any, str]]:
        return [(letter.record.payload.after, letter.error) for letter in self.letters]


async def run(*processors: Any, payloads: list[Any] | None = None, batch_size: int = 6) -> Outcome:
    outcome = Outcome()
    records = payloads if payloads is not None else [{"n": n} for n in range(6)]
    pipeline = Pipeline(
        "p",
        sources=[Source("in", memory.Source(records=records), batch_size=batch_size)],
        processors=processors,
        destinations=[Destination("out", memory.Destination(into=outcome.written))],
        dead_letters=DeadLetters(outcome.letters.append),
    )
    outcome.state = await Supervisor(pipeline, MemoryStore()).run()
    return outcome


def answer(table: pa.Table) -> Rows:
    """Filters 1, refuses 3 and doubles the others; 4 makes it raise."""
    n = table["n"]
    if pc.any(pc.equal(n, 4)).as_py():
        raise ValueError("four")
    doubled = table.set_column(0, "n", pc.multiply(n, 2))
    return Rows(doubled, keep=pc.not_equal(n, 1), refuse=pc.if_else(pc.equal(n, 3), "three", None))


async def answer_async(table: pa.Table) -> Rows:
    await trio.sleep(0.1)
    return answer(table)


def answer_with_batch(table: pa.Table, batch: Batch) -> Rows:
    assert [record.payload["n"] for record in batch] == table["n"].to_pylist()
    return answer(table)


class ByTable(sdk.Processor[sdk.Options]):
    table_schema = pa.schema([("n", pa.int64())])

    def open(self) -> None:
        self.answer = answer

    def process_table(self, table: pa.Table, batch: Batch) -> Rows:
        return self.answer(table)


class ByTableAsync(sdk.Processor[sdk.Options]):
    async def process_table(self, table: pa.Table, batch: Batch) -> Rows:
        return await answer_async(table)


WAYS: dict[str, Any] = {
    "function": processor(arrow=True)(answer),
    "async function": processor(arrow=True)(answer_async),
    "schema": processor(arrow=pa.schema([("n", pa.int32())]))(answer),
    "with batch": processor(arrow=True, batch=True)(answer_with_batch),
    "workers": processor(arrow=True, workers=3)(answer),
    "class": ByTable(),
    "async class": ByTableAsync(),
}


@pytest.mark.parametrize("batch_size", [1, 4, 6])
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_write_one_means_the_same(way: str, batch_size: int, autojump_clock: MockClock) -> None:
    outcome = await run(Processor("answer", WAYS[way]), batch_size=batch_size)

    assert outcome.state.status is Status.COMPLETED, outcome.state.error
    assert outcome.payloads == [{"n": 0}, {"n": 4}, {"n": 10}]
    assert outcome.refused == [({"n": 3}, "three"), ({"n": 4}, "ValueError: four")]
    assert {letter.node for letter in outcome.letters} == {"answer"}


async def test_a_condition_lets_records_without_fields_pass_by(autojump_clock: MockClock) -> None:
    def has_fields(record: Record) -> bool:
        return isinstance(record.payload.after, dict)

    outcome = await run(processor(arrow=True, when=has_fields)(answer), payloads=[b"raw", {"n": 5}, b"more"])

    assert outcome.payloads == [b"raw", {"n": 10}, b"more"]


async def test_only_what_failed_is_tried_again_and_from_what_it_was(autojump_clock: MockClock) -> None:
    seen: list[list[int]] = []

    @processor(arrow=True, retry=Retry(attempts=3))
    def flaky(table: pa.Table) -> pa.Table:
        numbers = table["n"].to_pylist()
        seen.append(numbers)
        if 3 in numbers and len(seen) < 7:
            raise ValueError("not yet")
        return table.set_column(0, "n", pc.add(table["n"], 10))

    outcome = await run(flaky, payloads=[{"n": n} for n in range(4)])

    assert outcome.payloads == [{"n": 10}, {"n": 11}, {"n": 12}, {"n": 13}]
    assert seen == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [3], [3]]


async def test_a_transient_error_is_no_answer_about_any_record(autojump_clock: MockClock) -> None:
    calls = []

    @processor(arrow=True)
    def unreachable(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        raise TransientError("the service is away")

    outcome = await run(unreachable)

    assert outcome.state.error is not None
    assert (outcome.state.error.code, outcome.state.error.node) == ("run.transient", "unreachable")
    assert calls == [6]
    assert (outcome.written, outcome.letters) == ([], [])


async def test_a_wrong_answer_stops_the_pipeline_in_the_name_of_the_node(autojump_clock: MockClock) -> None:
    outcome = await run(Processor("sloppy", processor(arrow=True)(lambda table: table.slice(2))))

    assert outcome.state.status is Status.DEGRADED
    assert outcome.state.error is not None
    assert (outcome.state.error.code, outcome.state.error.node) == ("contract.broken", "sloppy")
    assert outcome.state.error.message.startswith("sloppy: returned 4 rows for a table of 6 rows: ")
    assert outcome.payloads == []


@pytest.mark.parametrize(
    ("settings", "function", "problem"),
    [
        ({"arrow": 7}, answer, "must be True or a pyarrow.Schema, not 7"),
        ({"arrow": pa.schema([("n", pa.int8()), ("n", pa.int8())])}, answer, "has two columns of one name"),
        (
            {"arrow": True, "state": True},
            lambda table, state: table,
            "cannot be used with Arrow tables, whose rows may be processed again (use batch=True instead)",
        ),
        ({"arrow": True}, answer_with_batch, "cannot be called with a table: missing a required argument: 'batch'"),
        ({"arrow": True, "batch": True}, answer, "cannot be called with a table and a batch: too many positional"),
    ],
)
def test_what_cannot_work_is_reported_before_the_start(
    settings: dict[str, Any], function: Callable[..., Any], problem: str
) -> None:
    pipeline = Pipeline(
        "p",
        sources=[Source("in", memory.Source(records=[]))],
        processors=[cast("Any", processor)(**settings)(function)],
        destinations=[Destination("out", memory.Destination(into=[]))],
        delivery="exactly_once",
    )

    with pytest.raises(PipelineInvalid) as raised:
        compile_pipeline(pipeline)
    assert problem in str(raised.value)


def test_without_pyarrow_the_check_says_what_to_install_and_other_processors_work(tmp_path: Path) -> None:
    written = """
from conduit_connectors import memory
from conduit_py import Destination, Pipeline, Source, processor

@processor(arrow=%s)
def same(given):
    return given

pipeline = Pipeline(
    "p",
    sources=[Source("in", memory.Source(records=[{"n": 1}]))],
    processors=[same],
    destinations=[Destination("out", memory.Destination(into=[]))],
)
"""
    (tmp_path / "with_arrow.py").write_text(written % True)
    (tmp_path / "without.py").write_text(written % False)

    refused, fine = (checked(tmp_path / name) for name in ("with_arrow.py", "without.py"))

    assert refused.returncode == 2
    assert "takes Arrow tables, and pyarrow is not installed here" in refused.stdout + refused.stderr
    assert "pip install 'conduit-dataflow[arrow]'" in refused.stdout + refused.stderr
    assert fine.returncode == 0, fine.stderr


def checked(file: Path) -> "subprocess.CompletedProcess[str]":
    script = "import sys\nsys.modules['pyarrow'] = None\nfrom conduit_py.cli.main import main\nmain()"
    command = [sys.executable, "-c", script, "check", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=file.parent)
