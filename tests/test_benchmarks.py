"""The benchmarks run, and every contender does the same work. How long it takes is no part of these tests."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec import structs

from benchmarks import once
from benchmarks.__main__ import draw, table
from benchmarks.chart import stack
from benchmarks.instructions import total_of
from benchmarks.latency import Notes, measure_here
from benchmarks.measure import chosen_contenders, own_copy, prepared, same_work, summarise
from benchmarks.observed import collector
from benchmarks.once import Measurement
from benchmarks.stages import add_up
from benchmarks.works import WORKS

ROOT = Path(__file__).parent.parent
RECORDS = 2000
WARM_UP = 200
"""It is for the clock, which nobody looks at here."""
MEASUREMENT = Measurement(1000, 1.0, 1.0, 50.0, 40.0, 900, "digest")


def run(module: str, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | ({} if path is None else {"PATH": path})
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def rows_of(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert ran.returncode == 0, ran.stderr
    rows: list[dict[str, Any]] = json.loads(ran.stdout)["rows"]
    return rows


class TestWorks:
    @pytest.mark.parametrize("work", WORKS)
    def test_all_contenders_of_a_work_count_the_same_and_write_the_same_bytes(self, work: str) -> None:
        round_ = {}
        with prepared(work, RECORDS, warm_up=WARM_UP) as folder:
            for name in WORKS[work].contenders:
                with own_copy(folder) as own:
                    round_[name] = once.measure_here(work, name, RECORDS, own, warm_up=WARM_UP)

        same_work(work, round_)

    def test_a_contender_that_does_less_or_writes_other_bytes_ends_the_benchmark(self) -> None:
        with pytest.raises(SystemExit, match="did not do the same work"):
            same_work("W1", {"loop": MEASUREMENT, "bytewax": replace(MEASUREMENT, at_sink=899)})
        with pytest.raises(SystemExit, match="wrote different bytes"):
            same_work("W1", {"loop": MEASUREMENT, "bytewax": replace(MEASUREMENT, output_digest="other")})

    def test_a_ratio_is_taken_within_its_round_and_the_median_stands(self) -> None:
        """A round in which the machine was slow slows the loop and the others alike."""
        contenders = WORKS["W1"].contenders
        rounds = [
            {name: replace(MEASUREMENT, cpu_seconds=slow * (1.0 if name == "loop" else cost)) for name in contenders}
            for slow, cost in ((1.0, 2.0), (10.0, 2.5), (1.0, 4.0))
        ]

        row = next(row for row in summarise("W1", rounds) if row.contender == "conduit-py, records")

        assert (row.cpu_ratio, row.cpu_ratio_min, row.cpu_ratio_max) == (0.4, 0.25, 0.5)

    def test_beside_it_stands_the_ratio_of_the_best_rounds_whichever_they_are(self) -> None:
        """The machine was quick for the loop in the second round, and for the others in the third."""
        contenders = WORKS["W1"].contenders
        rounds = [
            {name: replace(MEASUREMENT, cpu_seconds=loop if name == "loop" else other) for name in contenders}
            for loop, other in ((3.0, 3.0), (1.0, 4.0), (2.0, 1.25))
        ]

        row = next(row for row in summarise("W1", rounds) if row.contender == "loop again")

        assert (row.cpu_ratio, row.cpu_ratio_best) == (1.0, 0.8)

    def test_the_table_and_the_plot_have_every_contender(self) -> None:
        works = ("W2", "size 25", "size 1000")
        rows = [row for work in works for row in summarise(work, [dict.fromkeys(WORKS[work].contenders, MEASUREMENT)])]

        text, plot = table(rows), ElementTree.fromstring(stack(draw(rows)))

        assert all(name in text for name in WORKS["W2"].contenders)
        assert "A/A control" in text
        assert set(plot.itertext()) >= {*WORKS["W2"].contenders, "growth: size", "1,000"}

    def test_make_bench_measures_in_processes_of_their_own(self, tmp_path: Path) -> None:
        small = ["--records", str(RECORDS), "--rounds", "1", "--json", "--svg", str(tmp_path / "plot.svg")]
        rows = rows_of(run("benchmarks", "J1", *small))

        assert [row["contender"] for row in rows] == list(WORKS["J1"].contenders)
        assert all(row["cpu_microseconds"] > 0 for row in rows)
        assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")

    def test_with_words_only_contenders_with_one_of_them_run_beside_the_loop_and_its_control(self) -> None:
        assert chosen_contenders("W2", ["dict", "by blocks"]) == [
            "loop",
            "loop again",
            "loop by blocks",
            "conduit-py, dict",
            "conduit-py, batch of dicts",
        ]
        assert chosen_contenders("W2", None) == list(WORKS["W2"].contenders)

    def test_a_work_that_there_is_not_is_said(self) -> None:
        ran = run("benchmarks", "W9")

        assert ran.returncode == 2
        assert "there is no 'W9'" in ran.stderr


class TestLatency:
    def test_a_record_waits_from_its_read_until_an_ack_that_covers_it(self) -> None:
        notes = Notes()
        notes.began = 10.0
        notes.reads = [(0, 1, 10.5), (1, 3, 11.0)]
        notes.acks = [(1, 12.0), (2, 14.0)]

        assert notes.waits() == [1.5, 1.0, 3.0]
        assert notes.delays(rate=2.0) == [2.0, 1.5, 3.0]

    @pytest.mark.parametrize(("style", "rate"), [("records", 0), ("dict", 200)])
    def test_single_records_are_timed_idle_and_at_a_rate(self, style: str, rate: int) -> None:
        timed = measure_here(style, "SQLite", rate, seconds=0.2, idle_records=10)

        assert timed["records"] == (40 if rate else 10)
        assert 0 < timed["p50_ms"] <= timed["p99_ms"] <= timed["most_ms"]

    def test_both_stores_a_control_and_the_commit_alone_are_timed(self) -> None:
        small = ["--styles", "typed", "--rates", "0", "--idle-records", "10", "--rounds", "1", "--json"]
        rows = rows_of(run("benchmarks.latency", *small))

        assert [row["store"] for row in rows] == ["memory", "memory again", "SQLite", "commit alone"]
        assert {row["rate"] for row in rows} == {0}


def test_the_stages_of_the_usual_way_of_a_batch_are_added_up() -> None:
    usual = ("read", "end of read", "write", "end of write")
    marks, now = [], 0.0
    for number in range(40):
        # Each stage takes one second, but for one batch in which all take ten.
        for name in usual:
            marks.append((name, now))
            now += 10.0 if number == 7 else 1.0
    # A batch that was written later is another way.
    marks += [("read", now), ("end of read", now + 1.0), ("read", now + 2.0)]

    assert add_up(marks) == 4.0


def test_memory_is_measured_with_more_records_and_a_blocked_destination() -> None:
    small = ["--works", "W1", "--styles", "records", "--records", "300", "--seconds", "0.2", "--rounds", "1", "--json"]
    rows = rows_of(run("benchmarks.memory", *small))

    assert {(row["case"], row["contender"]) for row in rows} >= {
        ("W1 × 1", "loop again"),
        ("W1 × 10", "conduit-py, records"),
        ("blocked", "conduit-py, records"),
    }


class TestInstructions:
    def test_the_total_is_read_from_the_file_of_callgrind(self, tmp_path: Path) -> None:
        (tmp_path / "callgrind.out").write_text("version: 1\nevents: Ir\nfn=(1) main\n1 20\n\ntotals: 123456\n")

        assert total_of(tmp_path / "callgrind.out") == 123456

    def test_without_valgrind_it_says_what_to_install(self, tmp_path: Path) -> None:
        ran = run("benchmarks.instructions", path=str(tmp_path))

        assert ran.returncode == 2
        assert "apt-get install valgrind" in ran.stderr


@pytest.mark.parametrize("way", ["no hooks", "off", "otel, one span", "otel, all spans", "openlineage"])
def test_a_run_whose_cost_is_counted_does_its_work(way: str, tmp_path: Path) -> None:
    for part in ("run", "warm-up"):
        (tmp_path / part).mkdir()
        WORKS["W2m"].prepare(2000, tmp_path / part)
    with collector() as port:
        server = f"http://127.0.0.1:{port}"
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": server, "OPENLINEAGE_URL": server}
        command = [sys.executable, "-m", "benchmarks.observed_once", way, "W4m", "dict", "2000", str(tmp_path)]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "run" / "out.jsonl").read_text().splitlines()) == 1800


def test_the_cost_of_an_observer_needs_valgrind_and_says_so(tmp_path: Path) -> None:
    ran = run("benchmarks.observed", path=str(tmp_path))

    assert ran.returncode == 2
    assert "apt-get install valgrind" in ran.stderr


def test_the_driver_is_full_with_as_many_executors_as_work_while_it_does() -> None:
    pytest.importorskip("pyspark")
    scale = importlib.import_module("benchmarks.scale")
    cost = scale.Cost(
        1, "staged", [0.02, 0.5, 0.01], [0.01, 0.0, 0.03], [9.0], [0.0], [3.0, 9.0, 3.0], [0.2] * 3, [1.0], [0.3], [1.0]
    )

    assert cost.saturation() == pytest.approx(80)
    assert structs.replace(cost, python_us=[-0.01] * 3, java_us=[0.012] * 3).saturation() is None


def test_every_message_of_a_queue_is_tracked_and_arrives_once() -> None:
    ran = run("benchmarks.queue", "--messages", "2000")

    assert ran.returncode == 0, ran.stderr
    assert "tracked messages/s" in ran.stdout
