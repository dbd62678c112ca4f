"""The keys `delivery` and `transaction` of a YAML file, which Conduit does not have."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conduit_connectors import file

from conduit_py.config.loaded import Loaded
from conduit_py.pipeline import Destination, Pipeline, Source
from conduit_py.pipeline_settings import PipelineSettings, RateLimit, TransactionLimits
from conduit_py.schedule import Schedule
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end

Load = Callable[..., Loaded]
Said = Callable[[Loaded], list[str]]


def document(
    *lines: str,
    of: str = "plugin: file, settings: {path: ./in.txt}",
    into: str = "plugin: file, settings: {path: ./out.txt}",
) -> str:
    more = "".join(f"    {line}\n" for line in lines)
    return (
        "version: 2.2\n"
        "pipelines:\n"
        "  - id: copy\n"
        f"{more}"
        "    connectors:\n"
        f"      - {{id: in, type: source, {of}}}\n"
        f"      - {{id: out, type: destination, {into}}}\n"
    )


def settings(loaded: Loaded) -> PipelineSettings:
    (pipeline,) = loaded.pipelines
    return pipeline.pipeline.settings


def test_a_pipeline_in_yaml_is_the_one_in_python(load: Load, said: Said) -> None:
    loaded = load(
        document(
            "delivery: exactly_once",
            "transaction: {min-seconds: 0.5, max-seconds: 3, max-records: 100, max-bytes: 65536}",
        )
    )
    python = Pipeline(
        "copy",
        sources=[Source("in", file.Source(path=Path("in.txt")))],
        destinations=[Destination("out", file.Destination(path=Path("out.txt")))],
        delivery="exactly_once",
        transaction=TransactionLimits(min_seconds=0.5, max_seconds=3, max_records=100, max_bytes=65536),
    )

    assert said(loaded) == []
    assert settings(loaded) == python.settings


def test_what_is_not_said_is_as_in_conduit(load: Load, said: Said) -> None:
    plain, named = load(document()), load(document("delivery: at_least_once"))

    assert (said(plain), said(named)) == ([], [])
    assert settings(plain) == settings(named)
    assert (settings(plain).delivery, settings(plain).transaction) == ("at_least_once", None)
    assert plain.pipelines[0].pipeline.dead_letters.settings.window_size == 1


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
def test_without_a_queue_the_first_refused_record_stops_such_a_pipeline_too(
    load: Load, said: Said, delivery: str
) -> None:
    loaded = load(document(f"delivery: {delivery}"))

    assert said(loaded) == []
    assert loaded.pipelines[0].pipeline.dead_letters.policy.stops
    assert settings(loaded).delivery == delivery


def test_a_value_may_be_taken_from_the_environment(load: Load) -> None:
    loaded = load(document("delivery: ${HOW}"), {"HOW": "exactly_once"})

    assert settings(loaded).delivery == "exactly_once"


def test_problems_are_reported_with_their_places(load: Load, said: Said) -> None:
    wrong = load(
        document(
            "delivery: exactly-once",
            "transaction:",
            "  min-seconds: soon",
            "  max-records: 0",
            "  max_bytes: 10",
        )
    )

    assert said(wrong) == [
        "pipelines.yaml:4: pipelines.copy.delivery: must be at_least_once, at_most_once or exactly_once, "
        "not 'exactly-once' (did you mean 'exactly_once'?)",
        "pipelines.yaml:6: pipelines.copy.transaction.min-seconds: Input should be a valid number, unable to "
        "parse string as a number, not 'soon'",
        "pipelines.yaml:7: pipelines.copy.transaction.max-records: Input should be greater than or equal to 1, not '0'",
        "warning: pipelines.yaml:8:7: pipelines.copy.transaction.max_bytes: there is no such key, so it has no effect "
        "(did you mean 'max-bytes'?)",
    ]


def test_what_does_not_go_with_it_is_refused_by_name(load: Load, said: Said) -> None:
    logged = load(document("delivery: exactly_once", into="plugin: log"))
    idle = load(document("transaction: {max-records: 10}"))
    queue = load(document("delivery: exactly_once", "dead-letter-queue: {window-size: 0}"))

    assert [_path(each) for each in said(logged)] == ["pipelines.copy.destinations.out"]
    assert [_path(each) for each in said(idle)] == ["pipelines.copy.transaction"]
    assert [_path(each) for each in said(queue)] == ["pipelines.copy.dead_letters.handler"]


def _path(said: str) -> str:
    return said.split(": ")[1]


async def test_it_runs_exactly_once(load: Load, tmp_path: Path) -> None:
    text = document(
        "delivery: exactly_once",
        "transaction: {max-records: 1}",
        of="plugin: generator, settings: {recordCount: 3, format.type: raw, format.options.id: int}",
        into=f"plugin: file, settings: {{path: {tmp_path}/out.txt}}",
    )
    (loaded,) = load(text).pipelines
    store = MemoryStore()
    outcome = await run_to_end(loaded.pipeline, store)
    claimed = await store.claim_state("copy")

    assert (outcome.status, outcome.progress.acked) == (Status.COMPLETED, 3)
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 3
    assert claimed is not None
    assert claimed.committed == 3


def test_a_source_may_be_atomic(load: Load, said: Said) -> None:
    plain = "plugin: file, settings: {path: ./in.txt}"
    loaded = load(document("delivery: exactly_once", of=f"{plain}, atomic: true"))

    # The file has no groups, and so the setting has arrived.
    assert ["does not tell which records belong together" in text for text in said(loaded)] == [True]
    assert said(load(document(of=f"{plain}, atomic: false"))) == []


@pytest.mark.parametrize("given", ["yes", "1", "maybe"])
def test_atomic_is_true_or_false(load: Load, said: Said, given: str) -> None:
    [text] = said(load(document(of=f"plugin: file, settings: {{path: ./in.txt}}, atomic: {given}")))

    assert f"connectors.in.atomic: must be true or false, not '{given}'" in text


def test_a_destination_is_not_atomic(load: Load, said: Said) -> None:
    [text] = said(load(document(into="plugin: file, settings: {path: ./out.txt}, atomic: true")))

    assert "connectors.out.atomic: is a setting of sources" in text


def test_a_source_may_have_a_schedule(load: Load, said: Said) -> None:
    plain = "plugin: generator, settings: {recordCount: 3, format.type: raw, format.options.id: int}"
    (loaded,) = load(document(of=f"{plain}, schedule: 0 3 * * *, timezone: Europe/Berlin")).pipelines

    assert loaded.pipeline.schedule == Schedule("0 3 * * *", "Europe/Berlin")
    [wrong] = said(load(document(of=f"{plain}, schedule: 0 25 * * *")))
    assert "connectors.in.schedule: must be a cron expression of five fields: its hour cannot be read" in wrong
    [tailing] = said(load(document(of="plugin: file, settings: {path: ./in.txt}, schedule: 0 3 * * *")))
    assert "file waits for more at its end" in tailing
    [misplaced] = said(load(document(into="plugin: file, settings: {path: ./out.txt}, schedule: 0 3 * * *")))
    assert "connectors.out.schedule: is a setting of sources" in misplaced


def test_the_limits_of_nodes_stand_beside_their_plugins(load: Load, said: Said) -> None:
    of = "plugin: file, settings: {path: ./in.txt}, batch-size: 5000, window: 20000, rate: {bytes-per-second: 1e6}"
    into = (
        "plugin: file, settings: {path: ./out.txt, sdk.batch.size: 7, sdk.batch.delay: 2s}, batch-size: 100, "
        "batch-bytes: 65536, rate: {records-per-second: 50, burst: 5}"
    )
    loaded = load(document(of=of, into=into))
    [source], [lake] = loaded.pipelines[0].pipeline.sources, loaded.pipelines[0].pipeline.destinations

    assert said(loaded) == []
    assert (source.batch_size, source.window, source.settings.rate) == (5000, 20000, RateLimit(bytes_per_second=1e6))
    # The key of the node wins over the setting that Conduit has for the plugin.
    assert (lake.batch_size, lake.batch_bytes, lake.batch_seconds) == (100, 65536, 2.0)
    assert lake.rate == RateLimit(records_per_second=50, burst=5)


def test_wrong_limits_are_problems_at_their_keys(load: Load, said: Said) -> None:
    of = "plugin: file, settings: {path: ./in.txt}, batch-size: many, batch-seconds: 3"
    into = "plugin: file, settings: {path: ./out.txt}, batch-seconds: -1, window: 5, rate: {burst: 3, per-second: 5}"
    texts = "\n".join(said(load(document(of=of, into=into))))

    assert "connectors.in.batch-size: Input should be a valid integer" in texts
    assert "connectors.in.batch-seconds: is a setting of destinations" in texts
    assert "connectors.out.batch-seconds: Input should be greater than or equal to 0" in texts
    assert "connectors.out.window: is a setting of sources" in texts
    assert "connectors.out.rate.per-second: there is no such key" in texts
    assert "records-per-second or bytes-per-second must be given" in texts


def test_records_wait_for_others_before_a_processor(load: Load, said: Said) -> None:
    limits = "batch-size: 64, batch-seconds: 2"
    line = "processors: [{id: first, plugin: model.call, settings: {url: 'http://h', into: x}, %s}]"
    loaded = load(document(line % limits))
    [first] = loaded.pipelines[0].pipeline.processors

    assert said(loaded) == []
    assert (first.batch_size, first.batch_seconds) == (64, 2.0)
    assert "batch_size needs batch_seconds" in "\n".join(said(load(document(line % "batch-size: 64"))))
