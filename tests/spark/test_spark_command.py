"""`conduit-py run --engine spark` where something is missing: what to do is said, and nothing is started."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import run_command

FILE = """
from conduit_py import Destination, Pipeline, Source, Spark
from conduit_connectors import file, objects, parquet, sqlite_queue, stdio
pipeline = Pipeline(
    "copy",
    sources=[Source("in", {source})],
    destinations=[Destination("out", {destination})],{engine}
)
"""
QUEUE = 'sqlite_queue.Source(path="queue.db")'
WITHOUT_PYSPARK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
from conduit_py.cli.main import main
sys.argv = ["conduit-py", *sys.argv[1:]]
main()
"""


def run(
    folder: Path,
    *options: str,
    command: str = "run",
    program: str = "",
    source: str = 'file.Source(path="in.txt")',
    destination: str = 'file.Destination(path="out.txt")',
    engine: str = "",
    **environment: str,
) -> tuple[int, str]:
    """The exit code and what was said."""
    engine = engine and f"\n    engine={engine},"
    (folder / "plain.py").write_text(FILE.format(source=source, destination=destination, engine=engine))
    (folder / "in.txt").write_text("one\n")
    arguments = (command, "plain.py", *options)
    if program:
        # What is missing is found out when modules are imported: not in a process that has them.
        cold = [sys.executable, "-c", program, *arguments]
        ran = subprocess.run(cold, cwd=folder, capture_output=True, text=True, timeout=300)
    else:
        ran = run_command(*arguments, cwd=folder, env=os.environ | environment)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_master_without_the_engine_is_a_problem(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--master", "local[2]")

    assert code == 3
    assert "--master requires --engine spark" in said


def test_without_pyspark_it_says_what_to_install(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", program=WITHOUT_PYSPARK)

    assert code == 3
    assert "needs pyspark, not installed here" in said
    assert "pip install 'conduit-dataflow[spark]'" in said


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", JAVA_HOME="", PATH=str(tmp_path))

    assert code == 3
    assert "Spark runs on Java, and there is none on this machine" in said
    assert "apt-get install openjdk-17-jre-headless" in said


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_file_that_names_spark_is_refused_without_java(tmp_path: Path, command: str) -> None:
    code, said = run(tmp_path, command=command, engine='"spark"', JAVA_HOME="", PATH=str(tmp_path))

    assert code == 3
    assert "Spark runs on Java, and there is none on this machine" in said


def test_check_says_what_it_runs_on(tmp_path: Path) -> None:
    code, said = run(tmp_path, command="check", engine='Spark(master="local[2]")')

    assert (code, said.splitlines()[0]) == (0, "copy: ok, 1 source, 0 processors, 1 destination, on Spark (local[2])")


def test_check_warns_of_settings_that_open_spark_to_others(tmp_path: Path) -> None:
    code, said = run(tmp_path, command="check", engine='Spark(master="local[2]", conf={"spark.authenticate": "false"})')

    assert code == 0
    assert said.count("warning: ") == 1
    assert "all who reach a port of Spark on local[2] can run code there: set spark.authenticate to true" in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('file.Source(path="in.txt")', "in is read by the executors: it is divided into parts"),
        ('file.Source(path="in.csv", format="csv")', "in is read by the executors: it is divided into parts"),
        ('file.Source(path="in.csv.gz", format="csv")', "in is read by the executors: it is divided into parts"),
        ('objects.Source(url="in/*.jsonl.gz")', "in is read by the executors: it is divided into parts"),
        ('objects.Source(url="in/*", format="json", after="delete")', "in is read by the driver: objects get"),
        ('parquet.Source(path="in.parquet")', "in is read by the executors: it is divided into parts"),
        ('file.Source(path="in.txt", tail=True)', "in is read by the driver: it waits for more at the end"),
        ("stdio.Source()", "in is read by the driver: a process has one standard input"),
    ],
)
def test_check_says_which_process_reads_each_source(tmp_path: Path, source: str, said: str) -> None:
    assert said in run(tmp_path, "--engine", "spark", command="check", source=source)[1]


def test_check_says_it_in_json_too(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", "--json", command="check")
    [pipeline] = json.loads(said)["pipelines"]

    assert code == 0
    assert pipeline["engine"] == "spark"
    assert pipeline["read"] == {"in": {"by": "executors", "why": "it is divided into parts, one for each task"}}
    assert pipeline["written"]["out"]["way"] == "prepared by executors"


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ('file.Destination(path="out.txt")', "out is prepared by executors: a part comes to the driver as one batch"),
        ('objects.Destination(url="out")', "out is staged by executors: each task writes its part at the place itself"),
        (
            'objects.Destination(url="out")',
            "exactly once, in order: out shows what was staged for a transaction",
        ),
        ('parquet.Destination(path="out")', "out is written by the driver: its columns are those of the first records"),
    ],
)
def test_check_says_which_process_writes_each_destination(tmp_path: Path, destination: str, said: str) -> None:
    engine = '"spark", delivery="exactly_once"'
    source = 'file.Source(path="in.txt", format="json")'
    assert said in run(tmp_path, command="check", source=source, destination=destination, engine=engine)[1]


def test_clear_removes_what_tasks_have_staged_and_nobody_needs(tmp_path: Path) -> None:
    """Those of a run that was killed long ago; what is younger may be of a run that goes on."""
    left = [tmp_path / f"out/_conduit/run-{name}/{'0' * 12}-x.jsonl" for name in ("old", "new")]
    for path in left:
        path.parent.mkdir(parents=True)
        path.touch()
    os.utime(left[0], (0, 0))
    (tmp_path / "plain.py").write_text(
        FILE.format(
            source='file.Source(path="in", format="json")', destination='objects.Destination(url="out")', engine=""
        )
    )
    ran = run_command("spark", "clear", "plain.py", cwd=tmp_path)
    again = run_command("spark", "clear", "plain.py", "--hours", "0", "--json", cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (
        0,
        "copy: out: removed 1 files or tables, left 1 that may be needed\n",
    )
    assert json.loads(again.stdout) == {"destinations": [{"pipeline": "copy", "node": "out", "removed": 1, "left": 0}]}
    assert not any(path.parent.exists() for path in left)


def test_check_refuses_what_cannot_run_on_the_spark_that_the_file_names(tmp_path: Path) -> None:
    code, said = run(tmp_path, command="check", source=QUEUE, engine='"spark"')

    assert code == 2
    assert "plain.py:6: sources.in: shares its work with other processes by leases" in said


def test_an_engine_that_is_none_is_a_problem(tmp_path: Path) -> None:
    code, said = run(tmp_path, command="check", engine='"sparc"')

    assert code == 2
    assert """engine: Value error, must be "trio", "spark" or Spark(…), not 'sparc'""" in said


def test_the_command_has_the_last_word_about_the_engine(tmp_path: Path) -> None:
    code, _ = run(tmp_path, "--engine", "trio", engine='"spark"', JAVA_HOME="", PATH=str(tmp_path))

    assert code == 0
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1


def test_a_master_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        code, said = run(tmp_path, "--engine", "spark", "--master", f"spark://{address}")

    assert code == 1
    assert f"no Spark master answers ({address}: Connection refused)" in said


def test_what_cannot_run_on_spark_is_a_problem_in_the_file(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", source=QUEUE)

    assert code == 2
    assert "plain.py:6: sources.in: shares its work with other processes by leases" in said
    assert 'run it on the engine "trio"' in said
    assert not (tmp_path / "out.txt").exists()


def test_pyspark_is_imported_only_for_its_engine() -> None:
    code = "import sys, conduit_py.cli.main, conduit_py.cli.run; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)

    assert ran.stdout == "False\n"
