"""The metrics of a fleet: every one that is declared, exactly as declared, with the values that the traffic gives."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from conduit_processors import window
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Recovery, Retry, Source, processor
from conduit_py.errors import FatalError
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk import Lag, QueueCounts
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import DURATION_BOUNDS, WAIT_REASONS, Meter, Wait, WaitReason, empty
from conduit_py.telemetry import metrics
from conduit_py.telemetry.export import reference_page
from conduit_py.telemetry.metrics_text import MetricsText, labels_text, metrics_text
from conduit_py.testing import Block, EventLog, Fail, ScriptedDestination, ScriptedSource
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage

ROOT = Path(__file__).parent.parent.parent

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@processor
def pick(record: Record) -> Record | None:
    """Filters one record in ten and refuses another."""
    number = int(record.position)
    if number % 10 == 3:
        return None
    if number % 10 == 7:
        raise ValueError("a seven")
    return record


class Behind(ScriptedSource):
    """Says in every unit how far it is behind, and counts as a source over a shared queue does."""

    queue_counts = QueueCounts(held=1, extended=2, lost=3, taken_over=4, duplicates=5, unreadable=6, failed=7)

    async def lag(self) -> Lag:
        return Lag(records=7, bytes=700, seconds=0.5, retained_bytes=9000, partitions={"orders:0": 4, "orders:1": 3})


def pipeline(
    id: str, log: EventLog, *, records: int = 40, script: Mapping[int, object] | None = None, bounded: bool = True
) -> Pipeline:
    destination = ScriptedDestination(name=f"{id}-to", log=log, script=script or {})
    return Pipeline(
        id,
        sources=[Source("from", Behind(records=records, name=id, log=log, bounded=bounded), window=16, batch_size=4)],
        processors=[pick],
        destinations=[Destination("to", destination, retry=Retry(attempts=3, delay_seconds=0.1))],
        dead_letters=DeadLetters("drop"),
    )


def windowed() -> Pipeline:
    """One window of three records, which is open: in the state there are the window and the watermark."""
    records = [Record.of({"n": number, "t": number}) for number in range(3)]
    return Pipeline(
        "windowed",
        sources=[Source("from", ScriptedSource(records=records, bounded=False))],
        processors=[Processor("window", window.Tumbling(time="t", size_seconds=60))],
        destinations=[Destination("to", FakeStagedDestination(storage=FakeStorage()))],
        delivery="exactly_once",
    )


async def scrape(*pipelines: Pipeline, after_seconds: float) -> str:
    """The text after so many seconds of virtual time."""
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery, recovery=Recovery(delay_seconds=1, delay_max_seconds=1))
        for each in pipelines:
            await fleet.add(each)
        await fleet.boot()
        await trio.sleep(after_seconds)
        text = metrics_text(fleet).decode()
        nursery.cancel_scope.cancel()
    return text


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(seen: Series, name: str, **labels: str) -> float:
    return seen[name, frozenset(labels.items())]


async def test_every_metric_of_the_table_is_served_with_its_labels_and_none_besides(autojump_clock: MockClock) -> None:
    text = await scrape(pipeline("p", EventLog(), bounded=False), windowed(), after_seconds=10)
    served: dict[str, set[str]] = {}
    for name, labels in series(text):
        if name.startswith("conduit_"):
            served.setdefault(name, set()).add(",".join(sorted({key for key, _ in labels} - {"le"})))

    expected = {name: {",".join(sorted(metric.labels))} for metric in metrics.all_metrics() for name in metric.series}
    assert served == expected
    assert "_created" not in text
    assert text.count("# HELP conduit_") == len(list(metrics.all_metrics()))


async def test_counters_say_what_became_of_every_record(autojump_clock: MockClock) -> None:
    seen = series(await scrape(pipeline("p", EventLog(), script={5: Fail("busy", times=2)}), after_seconds=10))
    source, picker, to = ({"pipeline_name": "p", "node": node} for node in ("from", "pick", "to"))

    assert value(seen, "conduit_records_read_total", **source) == 40
    assert value(seen, "conduit_records_acked_total", **source) == 40
    assert value(seen, "conduit_records_processed_total", **picker) == 40
    assert value(seen, "conduit_records_filtered_total", **picker) == 4
    assert value(seen, "conduit_records_nacked_total", **picker) == 4
    assert value(seen, "conduit_records_written_total", **to) == 32
    assert value(seen, "conduit_records_dead_lettered_total", pipeline_name="p") == 4
    assert value(seen, "conduit_retries_total", **to) == 2
    assert value(seen, "conduit_batch_records_sum", **picker) == 40
    assert value(seen, "conduit_pipeline_execution_duration_seconds_count", pipeline_name="p") == 40
    assert value(seen, "conduit_pipelines", status="completed") == 1
    assert value(seen, "conduit_connectors", type="source") == 1
    assert value(seen, "conduit_leases_held", **source) == 0
    assert value(seen, "conduit_leases_extended_total", **source) == 2
    assert value(seen, "conduit_objects_failed_total", **source) == 7
    assert value(seen, "conduit_processors", type="pick") == 1


async def test_the_state_and_the_watermark_of_a_window(autojump_clock: MockClock) -> None:
    seen = series(await scrape(windowed(), after_seconds=10))
    node = {"pipeline_name": "windowed", "node": "window"}

    assert value(seen, "conduit_state_keys", **node) == 2
    assert 20 < value(seen, "conduit_state_bytes", **node) < 200
    assert value(seen, "conduit_watermark_timestamp_seconds", **node) == 2


async def test_a_held_up_pipeline_says_what_it_waits_for_and_for_how_long(autojump_clock: MockClock) -> None:
    text = await scrape(pipeline("stuck", EventLog(), script={5: Block()}), after_seconds=120)
    seen = series(text)

    def waits(node: str, reason: str) -> float:
        return value(seen, "conduit_waiting", pipeline_name="stuck", node=node, reason=reason)

    assert waits("to", "write") == 1
    assert waits("to", "flush") == 0
    assert waits("from", "window") == 1
    assert value(seen, "conduit_progress_age_seconds", pipeline_name="stuck") == pytest.approx(120, abs=5)
    assert 0 < value(seen, "conduit_in_flight_records", pipeline_name="stuck", node="from") <= 16
    assert value(seen, "conduit_window_records", pipeline_name="stuck", node="from") == 16
    assert value(seen, "conduit_queue_depth_batches", pipeline_name="stuck", node="to") > 0


async def test_a_source_that_runs_says_how_far_it_is_behind(autojump_clock: MockClock) -> None:
    pipelines = [pipeline("running", EventLog(), bounded=False), pipeline("completed", EventLog())]
    seen = series(await scrape(*pipelines, after_seconds=30))

    lags = {
        (name, dict(labels)["pipeline_name"], dict(labels).get("partition")): lag
        for (name, labels), lag in seen.items()
        if "_lag_" in name or "_retained_" in name
    }
    assert lags == {
        ("conduit_source_lag_records", "running", None): 7,
        ("conduit_source_partition_lag_records", "running", "orders:0"): 4,
        ("conduit_source_partition_lag_records", "running", "orders:1"): 3,
        ("conduit_source_lag_bytes", "running", None): 700,
        ("conduit_source_retained_bytes", "running", None): 9000,
        ("conduit_source_lag_seconds", "running", None): 0.5,
    }


async def test_each_pipeline_has_exactly_one_status(autojump_clock: MockClock) -> None:
    log = EventLog()
    pipelines = [
        pipeline("completed", log),
        pipeline("degraded", log, script={5: Fail("gone", error=FatalError)}),
        pipeline("recovering", log, script={5: Fail("down", times=1000)}),
    ]
    seen = series(await scrape(*pipelines, after_seconds=30.5))

    statuses = {
        (dict(labels)["pipeline_name"], dict(labels)["status"])
        for (name, labels), held in seen.items()
        if name == "conduit_pipeline_status" and held == 1
    }
    assert ("completed", "completed") in statuses
    assert ("degraded", "degraded") in statuses
    assert len(statuses) == 3
    assert value(seen, "conduit_recoveries_total", pipeline_name="recovering") > 10


def test_a_reason_is_a_word_of_the_table_whatever_follows_it() -> None:
    meter = Meter("to", "destination", waits=[Wait(WaitReason.BACK_OFF, "to: write failed: link 17 down")])

    reasons = dict.fromkeys((reason.value for reason in WAIT_REASONS["destination"]), 0)
    assert metrics.WAITING.read(meter) == reasons | {"back-off": 1}


def test_every_reason_in_the_data_plane_is_in_the_table() -> None:
    said: set[str] = set()
    for folder in ("stream", "exactly_once"):
        for path in (ROOT / "conduit_py" / folder).glob("*.py"):
            if path.name != "meter.py":
                said |= set(re.findall(r"\bWaitReason\.([A-Z_]+)", path.read_text()))

    assert said == {reason.name for reasons in WAIT_REASONS.values() for reason in reasons}
    assert said == {reason.name for reason in WaitReason}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from('\n"\\{}')))
def test_any_label_comes_back_as_it_was(label: str) -> None:
    text = MetricsText()
    text.put(metrics.RECOVERIES, labels_text({"pipeline_name": label}), 3)
    [family] = [each for each in text_string_to_metric_families(text.text()) if each.samples]

    assert family.samples[0].labels == {"pipeline_name": label}
    assert family.samples[0].value == 3


def test_buckets_hold_those_below_them_and_the_last_one_everything() -> None:
    text, histogram = MetricsText(), empty(DURATION_BOUNDS)()
    histogram.observe(0.0007, 3)
    histogram.observe(0.3)
    histogram.observe(1000, 2)
    text.put(metrics.PIPELINE_DURATION, labels_text({"pipeline_name": "p"}), histogram)
    seen = series(text.text())

    def bucket(bound: str) -> float:
        return value(seen, "conduit_pipeline_execution_duration_seconds_bucket", pipeline_name="p", le=bound)

    assert [bucket(bound) for bound in ("0.0005", "0.001", "0.25", "0.5", "30.0", "+Inf")] == [0, 3, 3, 4, 4, 6]
    assert value(seen, "conduit_pipeline_execution_duration_seconds_count", pipeline_name="p") == 6
    total = value(seen, "conduit_pipeline_execution_duration_seconds_sum", pipeline_name="p")
    assert total == pytest.approx(3 * 0.0007 + 0.3 + 2000)


def test_the_reference_page_is_that_of_the_table() -> None:
    page = ROOT / "docs" / "reference" / "metrics.md"

    assert page.read_text() == reference_page(), (
        "run: python -m conduit_py.telemetry.export > docs/reference/metrics.md"
    )
