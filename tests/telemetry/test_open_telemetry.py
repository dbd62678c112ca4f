"""What `--observe otel` sends to a collector, and that nothing of it reaches a pipeline that is not observed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_folder import COMMAND
from conduit_server import Server
from http_peer import HttpPeer, PeerAnswer, free_port
from otlp_collector import OtlpCollector, values
from warm_python import run_command

from conduit_py.metadata import trace_headers
from conduit_py.stream.signal import Allowance

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the-content-of-a-record"

PIPELINE = f"""
from conduit_connectors import file
from conduit_py import DeadLetters, Pipeline, Record, processor

@processor
def mark(record: Record) -> Record:
    if record.payload["n"] == 7:
        raise ValueError(f"refused {SECRET}")
    return record

pipeline = Pipeline(
    "p",
    sources={{"in": file.Source(path="in.jsonl", format="json")}},
    processors=[mark],
    destinations={{"out": file.Destination(path="out.jsonl", format="json")}},
    dead_letters=DeadLetters.keep(), DELIVERY
)
"""


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector().serving() as serving:
        yield serving


def write(folder: Path, delivery: str = "at_least_once", records: int = 3000) -> None:
    (folder / "p.py").write_text(PIPELINE.replace("DELIVERY", f'delivery="{delivery}",'))
    (folder / "in.jsonl").write_text("".join(f'{{"n":{n},"text":"{SECRET}"}}\n' for n in range(records)))


def run(folder: Path, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command("run", "p.py", "--observe", "otel", *arguments, cwd=folder, env=os.environ | environment)


def test_a_run_sends_spans_of_its_batches_and_metrics_of_its_nodes(tmp_path: Path, collector: OtlpCollector) -> None:
    write(tmp_path)

    ran = run(tmp_path, collector.environment)

    assert ran.returncode == 0, ran.stderr
    batches = collector.named("batch p")
    assert sum(values(each.attributes)["messaging.batch.message_count"] for each in batches) == 3000
    assert {values(each.attributes)["conduit.node"] for each in batches} == {"in"}
    assert all(each.end_time_unix_nano > each.start_time_unix_nano for each in batches)
    ids = {each.span_id: each.trace_id for each in batches}
    steps = collector.named("process mark") + collector.named("write out")
    assert len(steps) >= 2 * len(batches)
    assert all(ids[each.parent_span_id] == each.trace_id for each in steps)
    read = collector.metrics["conduit_records_read_total"].sum
    assert read.is_monotonic
    assert [point.as_int for point in read.data_points] == [3000]
    sizes = {
        values(each.attributes)["node"]: each
        for each in collector.metrics["conduit_batch_records"].histogram.data_points
    }
    assert (sizes["in"].sum, len(sizes["in"].bucket_counts), sizes["in"].HasField("min")) == (3000, 9, False)
    assert collector.resources[0]["service.name"] == "conduit-py"


def test_so_many_spans_begin_at_once_and_so_many_in_a_second_after_that() -> None:
    # Powers of two, whose sums are exact.
    allowance = Allowance(64, 16.0)

    assert [sum(allowance.take(now) for _ in range(1000)) for now in (0.0, 0.5, 0.5, 100.0)] == [64, 8, 0, 64]


def test_a_transaction_has_a_span_with_links_to_its_batches(tmp_path: Path, collector: OtlpCollector) -> None:
    write(tmp_path, "exactly_once")

    assert run(tmp_path, collector.environment).returncode == 0

    transactions = collector.named("transaction p")
    assert sum(values(each.attributes)["conduit.records"] for each in transactions) == 3000
    linked = {link.span_id for each in transactions for link in each.links}
    assert linked == {each.span_id for each in collector.named("batch p")}


def test_nothing_of_a_record_is_in_a_span(tmp_path: Path, collector: OtlpCollector) -> None:
    write(tmp_path)

    assert run(tmp_path, {**collector.environment, "OTEL_LOGS_EXPORTER": "none"}).returncode == 0

    assert collector.spans
    assert SECRET.encode() not in collector.received


def test_a_run_that_fails_ends_its_spans_with_the_code_of_the_error(tmp_path: Path, collector: OtlpCollector) -> None:
    write(tmp_path)
    text = (tmp_path / "p.py").read_text().replace("dead_letters=DeadLetters.keep(),", "")
    (tmp_path / "p.py").write_text(text)

    assert run(tmp_path, collector.environment).returncode == 1

    failed = [each for each in collector.named("batch p") if each.status.code == 2]
    assert failed
    assert {each.status.message for each in failed} == {"not settled: its records are read again"}


def test_a_server_sends_its_logs_with_their_facts(tmp_path: Path, collector: OtlpCollector) -> None:
    server = Server(tmp_path)
    write(tmp_path)
    server.write("p.py", (tmp_path / "p.py").read_text())
    try:
        running = server.start("--observe", "otel", **collector.environment)
        running.until("p", lambda shown: shown["status"] == "completed")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(300) == 0
    finally:
        server.close()

    events = [values(line.attributes).get("event") for line in collector.lines]
    assert "started" in events
    assert "completed" in events
    assert {line.severity_text for line in collector.lines} >= {"INFO"}
    assert collector.metrics["conduit_info"].gauge.data_points[0].as_int == 1
    assert collector.named("batch p")


def test_processes_of_a_server_send_their_spans(tmp_path: Path, collector: OtlpCollector) -> None:
    server = Server(tmp_path)
    write(tmp_path)
    server.write("p.py", (tmp_path / "p.py").read_text())
    try:
        running = server.start("--observe", "otel", "--processes", "1", **collector.environment)
        running.until("p", lambda shown: shown["status"] == "completed")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(300) == 0
    finally:
        server.close()

    assert collector.named("batch p")
    assert running.process.pid not in {resource["process.pid"] for resource in collector.resources}


def test_without_a_collector_everything_is_delivered(tmp_path: Path) -> None:
    write(tmp_path)

    ran = run(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"})

    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2999


def test_a_collector_that_never_answers_holds_up_nothing(tmp_path: Path) -> None:
    write(tmp_path)

    def never(_: object) -> PeerAnswer:
        time.sleep(3600)
        return PeerAnswer()

    with HttpPeer(never).serving() as peer:
        ran = run(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": peer.url, "OTEL_BSP_SCHEDULE_DELAY": "10"})

    # It has ended, and the collector still has not answered: that takes an hour.
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2999


def test_the_environment_turns_off_each_signal(tmp_path: Path, collector: OtlpCollector) -> None:
    write(tmp_path)

    assert run(tmp_path, {**collector.environment, "OTEL_SDK_DISABLED": "true"}).returncode == 0

    assert (collector.spans, collector.metrics, collector.lines) == ([], {}, [])


def test_a_batch_of_one_trace_is_part_of_that_trace(tmp_path: Path, collector: OtlpCollector) -> None:
    (tmp_path / "p.py").write_text(f"""
from conduit_connectors import file, memory
from conduit_py import Pipeline, Record

def record(position, trace):
    return Record(position=position, metadata={{"traceparent": f"00-{{trace}}-{PARENT}-01"}})

ONE, TWO = "{TRACE}", "{"1" * 32}"
pipelines = [
    Pipeline(name, sources={{"in": memory.Source(records=[record(b"1", ONE), record(b"2", other)])}},
             destinations={{"out": file.Destination(path=name, format="opencdc")}})
    for name, other in (("same", ONE), ("mixed", TWO))
]
same, mixed = pipelines
""")

    ran = run(tmp_path, collector.environment)

    assert ran.returncode == 0, ran.stderr
    [same], [mixed] = collector.named("batch same"), collector.named("batch mixed")
    assert (same.trace_id.hex(), same.parent_span_id.hex()) == (TRACE, PARENT)
    assert mixed.trace_id.hex() not in (TRACE, "1" * 32)
    assert [link.trace_id.hex() for link in mixed.links] == [TRACE, "1" * 32]


def test_a_run_without_it_imports_nothing_of_it(tmp_path: Path) -> None:
    write(tmp_path)
    line = (
        "import sys; from conduit_py.cli.main import answer; code = answer(['run', 'p.py']); "
        "sys.exit(code or any(name.startswith(('opentelemetry', 'openlineage')) for name in sys.modules))"
    )

    ran = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    write(tmp_path)
    hide = "import sys; sys.modules['opentelemetry'] = None; "
    line = f"{hide}from conduit_py.cli.main import answer; sys.exit(answer(['run', 'p.py', '--observe', 'otel']))"

    ran = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran.returncode == 3
    assert "conduit-dataflow[otel]" in ran.stderr
    assert COMMAND.exists()


@pytest.mark.parametrize(
    ("metadata", "headers"),
    [
        ({"traceparent": f"00-{TRACE}-{PARENT}-01"}, {"traceparent": f"00-{TRACE}-{PARENT}-01"}),
        (
            {"kafka.header.traceparent": f"00-{TRACE}-{PARENT}-00", "kafka.header.tracestate": "a=b"},
            {"traceparent": f"00-{TRACE}-{PARENT}-00", "tracestate": "a=b"},
        ),
        (
            {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b\r\nX: y"},
            {"traceparent": f"00-{TRACE}-{PARENT}-01"},
        ),
        ({"traceparent": f"00-{TRACE}-{PARENT}-01\r\nX: y"}, {}),
        ({"traceparent": f"00-{'0' * 32}-{PARENT}-01"}, {}),
        ({"traceparent": f"ff-{TRACE}-{PARENT}-01"}, {}),
        ({}, {}),
    ],
)
def test_only_a_valid_trace_becomes_headers(metadata: dict[str, str], headers: dict[str, str]) -> None:
    assert trace_headers(metadata) == headers
