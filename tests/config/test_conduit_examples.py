"""Pipelines as Conduit publishes them, written again: they load, and they run, unchanged."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from conduit_py.config.load import load_file
from conduit_py.config.loaded import LoadedPipeline
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end, simulated

EXAMPLES = Path(__file__).parent / "conduit_examples"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the examples are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


def example(name: str) -> LoadedPipeline:
    loaded = load_file(EXAMPLES / name)

    assert loaded.problems == ()
    return loaded.pipelines[0]


def records(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("file", sorted(EXAMPLES.iterdir()), ids=lambda file: str(file.name))
def test_examples_load_without_a_problem(file: Path) -> None:
    loaded = load_file(file)

    assert loaded.problems == ()
    assert loaded.pipelines
    assert {(pipeline.id, pipeline.desired) for pipeline in loaded.pipelines if pipeline.desired == "stopped"} <= {
        ("parked", "stopped")
    }


@simulated(seeds=[0])
async def test_lines_of_a_file_arrive_as_records() -> None:
    supervisor = Supervisor(example("file_to_file.yaml").pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(60)
        await trio.Path("lines.in").write_text("first\nsecond\n")
        await trio.sleep(60)
        status = supervisor.state.status
        supervisor.stop()

    assert status is Status.RUNNING  # it waits for the file and then for more, as Conduit's does
    assert [record["payload"]["after"] for record in records("lines.out")] == ["Zmlyc3Q=", "c2Vjb25k"]


@simulated(seeds=[0])
async def test_every_destination_gets_every_record() -> None:
    outcome = await run_to_end(example("two_destinations.yaml").pipeline)
    first = records("first.out")

    assert outcome.status is Status.COMPLETED
    assert len(first) == 2
    assert set(first[0]["payload"]["after"]) == {"id", "name", "employer", "temporary"}
    assert records("second.out") == first


@simulated(seeds=[0])
async def test_processors_of_a_source_see_only_its_records() -> None:
    outcome = await run_to_end(example("source_processor.yml").pipeline)
    payloads = [record["payload"]["after"] for record in records("staff.out")]

    assert outcome.status is Status.COMPLETED
    assert sorted(payload.get("team", "") for payload in payloads) == ["", "", "accounting"]
    assert [payload["company"] for payload in payloads] == ["acme"] * 3


@simulated(seeds=[0])
async def test_refused_records_reach_the_dead_letter_queue() -> None:
    outcome = await run_to_end(example("dead_letters.yaml").pipeline)
    (letter,) = records("refused.out")

    assert outcome.status is Status.COMPLETED
    assert outcome.progress.dead_letters == 1
    assert letter["metadata"]["conduit.dlq.nack.node.id"] == "staff:name-to-number"
    assert "is not a number" in letter["metadata"]["conduit.dlq.nack.error"]
    assert records("staff.out") == []


@simulated(seeds=[0])
async def test_a_record_a_second_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(example("generator_to_log.yaml").pipeline, MemoryStore())
    with caplog.at_level(logging.INFO, "conduit_py.log"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(4.5)
            supervisor.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == "conduit_py.log"]

    assert len(lines) == 5
    assert set(json.loads(lines[0].partition(" ")[2])["payload"]["after"]) == {"id", "name"}


@simulated(seeds=[0])
async def test_bursts_of_ten_take_a_pause_each() -> None:
    outcome = await run_to_end(example("bursts.yaml").pipeline)

    assert outcome.status is Status.COMPLETED
    assert len(records("bursts.out")) == 25
    assert 4.0 < trio.current_time() < 5.0  # a second of ten, a pause, another ten, a pause, half a second of five


@simulated(seeds=[0])
async def test_a_template_decides_what_is_written() -> None:
    outcome = await run_to_end(example("template_lines.yaml").pipeline)
    lines = (await trio.Path("badges.txt").read_text()).splitlines()

    assert outcome.status is Status.COMPLETED
    assert len(lines) == 3
    assert all(line.removeprefix("badge no. ").isdecimal() for line in lines)
    assert 2.0 <= trio.current_time() < 3.0


@simulated(seeds=[0])
async def test_conditions_route_records() -> None:
    outcome = await run_to_end(example("routing.yaml").pipeline)
    finance, legal = records("finance.out"), records("legal.out")

    assert outcome.status is Status.COMPLETED
    assert len(finance) + len(legal) == 40
    assert {record["payload"]["after"]["temporary"] for record in legal} == {True}
    assert {record["payload"]["after"]["temporary"] for record in finance} == {False}
    assert {record["metadata"]["by"] for record in finance + legal} == {"nobody"}


@simulated(seeds=[0])
async def test_batches_and_two_documents() -> None:
    loaded = load_file(EXAMPLES / "batched.yml")
    grid, parked = loaded.pipelines
    outcome = await run_to_end(grid.pipeline)

    assert [source.batch_size for source in grid.pipeline.sources] == [100, 100]
    assert (outcome.status, outcome.progress.acked) == (Status.COMPLETED, 1000)
    assert len(records("grid-1.out")) == len(records("grid-2.out")) == 1000
    assert (parked.id, parked.desired) == ("parked", "stopped")
    assert {warning.path.rpartition(".")[2] for warning in loaded.warnings} == {"delay"}


@simulated(seeds=[0])
async def test_by_default_the_first_refused_record_stops_the_pipeline_as_in_conduit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = await trio.Path(EXAMPLES / "dead_letters.yaml").read_text()
    await trio.Path(tmp_path / "stops.yaml").write_text(text.partition("    dead-letter-queue:")[0])
    ((loaded,), _, _) = load_file(tmp_path / "stops.yaml")
    outcome = await run_to_end(loaded.pipeline)

    assert outcome.status is Status.DEGRADED
    assert outcome.error is not None
    assert "is not a number" in outcome.error.message
    # The log is the dead-letter queue, but as in Conduit the record that stops the pipeline is not in it.
    assert [record for record in caplog.records if record.name == "conduit_py.log"] == []
